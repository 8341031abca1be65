"""The kernelspec's content, places, removal; host-wide routing and its undoing."""

import contextlib
import json
import os
import sys
import time
from pathlib import Path
from unittest.mock import ANY
from urllib.request import Request, urlopen

import processes
import pytest
from ipykernel.kernelspec import get_kernel_dict
from jupyter_client.kernelspec import KernelSpecManager

from jgpu.errors import ConfigError
from jgpu.kernelprovider.kernelspec import Place, find_all, install, kernel_json, remove
from jgpu.kernelprovider.routing import config_file, is_routed, route, unroute
from jgpu.wire.limits import PROTOCOL
from jgpu.wire.messages import LeaveSeat, TakeSeat


def test_the_spec_is_ipykernels_own_but_for_name_and_provisioner():
    ours = kernel_json()
    assert ours["metadata"].pop("kernel_provisioner") == {"provisioner_name": "jgpu-provisioner"}
    assert ours.pop("display_name") == "Python 3 (shared GPU)"
    plain = get_kernel_dict(python_arguments=["-Xfrozen_modules=off"])
    del plain["display_name"]
    assert ours == plain


def test_an_installed_spec_is_found_by_jupyter_with_its_logos():
    directory = install(Place())
    spec = KernelSpecManager().get_kernel_spec("jgpu")
    assert Path(spec.resource_dir) == directory
    assert spec.display_name == "Python 3 (shared GPU)"
    names = {file.name for file in directory.iterdir()}
    assert names == {"kernel.json", "logo-32x32.png", "logo-64x64.png", "logo-svg.svg"}
    assert (directory / "logo-64x64.png").read_bytes().startswith(b"\x89PNG")


def test_installing_twice_replaces_and_removing_removes():
    install(Place(), display_name="Old")
    install(Place(), display_name="New")
    assert KernelSpecManager().get_kernel_spec("jgpu").display_name == "New"
    assert list(find_all()) == ["jgpu"]
    remove(Place())
    assert find_all() == {}


def test_a_prefix_is_a_place_of_its_own(tmp_path):
    place = Place(tmp_path / "env")
    directory = install(place, name="other", python="/x/python")
    assert directory == tmp_path / "env" / "share" / "jupyter" / "kernels" / "other"
    assert json.loads((directory / "kernel.json").read_bytes())["argv"][0] == "/x/python"
    assert find_all(place) == {"other": directory}
    remove(place, "Other")
    assert not directory.exists()


def test_only_specs_of_ours_are_removed():
    directory = Place().kernels / "jgpu"
    directory.mkdir(parents=True)
    (directory / "kernel.json").write_text(json.dumps({"argv": ["x"], "display_name": "x"}))
    with pytest.raises(ConfigError, match="no kernel 'jgpu' of jgpu"):
        remove(Place())
    assert directory.exists()


def test_bad_names_and_places_are_sentences(tmp_path):
    with pytest.raises(ConfigError, match="Invalid kernel name"):
        install(Place(), name="a b")
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="cannot be installed"):
        install(Place(tmp_path / "file"))


# -- every kernel --------------------------------------------------------------------------------


def test_routing_keeps_what_others_wrote_and_is_undone_without_trace():
    file = config_file(Place())
    file.parent.mkdir(parents=True)
    before = {"KernelProvisionerFactory": {"other": 1}, "ServerApp": {"port": 9}}
    file.write_text(json.dumps(before))
    route(Place())
    route(Place())
    assert is_routed(Place())
    assert json.loads(file.read_bytes())["ServerApp"] == {"port": 9}
    assert unroute(Place()) == file
    assert unroute(Place()) is None
    assert json.loads(file.read_bytes()) == before


def test_a_file_that_routing_made_is_removed_again(tmp_path):
    place = Place(tmp_path / "usr" / "local")
    file = route(place)
    assert file == tmp_path / "usr/local/etc/jupyter/jupyter_config.json"
    assert json.loads(file.read_bytes()) == {
        "KernelProvisionerFactory": {"default_provisioner_name": "jgpu-provisioner"}
    }
    assert file.stat().st_mode & 0o777 == 0o644
    unroute(place)
    assert not file.exists()


def test_the_hosts_own_prefix_means_etc():
    assert config_file(Place(Path("/usr"))) == Path("/etc/jupyter/jupyter_config.json")


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("{", "is not JSON"),
        ("[]", "does not hold a Jupyter configuration"),
        ('{"KernelProvisionerFactory": 1}', "does not hold"),
        ('{"KernelProvisionerFactory": {"default_provisioner_name": "x"}}', "already makes 'x'"),
    ],
)
def test_a_file_that_is_not_understood_is_left_alone(text, sentence):
    file = config_file(Place())
    file.parent.mkdir(parents=True)
    file.write_text(text)
    with pytest.raises(ConfigError, match=sentence):
        route(Place())
    assert file.read_text() == text


@pytest.mark.e2e
def test_a_jupyter_server_starts_its_kernels_through_the_route(control, tmp_path):
    route(Place())
    with jupyter_server(tmp_path) as url:
        request = Request(
            f"{url['url']}api/kernels",
            data=b'{"name": "python3"}',
            headers={"Authorization": f"token {url['token']}"},
        )
        with urlopen(request, timeout=60) as reply:
            kernel_id = json.load(reply)["id"]
    assert control.requests == [
        TakeSeat(PROTOCOL, kernel_id, ANY),
        LeaveSeat("ticket-1", restart=False),
    ]


@contextlib.contextmanager
def jupyter_server(directory):
    """A server's own description: its url and token."""
    options = ["--no-browser", "--allow-root", "--ServerApp.port=0", "--log-level=ERROR"]
    server = processes.start([sys.executable, "-m", "jupyter_server", *options], cwd=directory)
    try:
        deadline = time.monotonic() + 60
        while (description := described()) is None:
            assert server.poll() is None
            assert time.monotonic() < deadline
        yield description
    finally:
        server.end()


def described():
    """What the server wrote of itself, once it answers."""
    for file in Path(os.environ["JUPYTER_RUNTIME_DIR"]).glob("jpserver-*.json"):
        with contextlib.suppress(ValueError, OSError):
            description = json.loads(file.read_bytes())
            with urlopen(f"{description['url']}api", timeout=10):
                return description
    return None
