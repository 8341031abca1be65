"""Who is let in, and to what: without and with a hub, below a path of the server's own."""

import os
import shutil
import sys
import tomllib
from pathlib import Path

import processes
import pytest
import websocket
from fake_hub import FakeHub
from lab_server import BASE, Notebook, start_lab

pytestmark = pytest.mark.slow

#: of somebody's server, as the hub says it
SCOPE = "access:servers!user=user1"
FOREIGN = {"Origin": "https://elsewhere.example", "Referer": "https://elsewhere.example/page"}
KEPT = 8 << 20


@pytest.fixture
def kernel(lab, request):
    """A kernel of the owner that keeps memory on the device; of each test another."""
    name = request.node.name
    with Notebook(lab.broker, name, KEPT), lab.listen() as page:
        page.until(lambda state: state["kernels"].get(name, {}).get("kept") == KEPT)
        yield name


def kept(lab, kernel):
    return lab.state()["kernels"][kernel]["kept"]


def refused(lab, **options):
    """The status with which a page's WebSocket is refused."""
    with pytest.raises(websocket.WebSocketBadStatusException) as caught:
        lab.listen(**options)
    return caught.value.status_code


def test_without_a_token_or_cookie_nothing_is_told_or_done(lab, kernel):
    assert lab.request("GET", "jgpu/api/state", token="").status == 403
    assert lab.request("GET", "jgpu/api/state", token="wrong").status == 403
    assert lab.act("evict", kernel, token="").status == 403
    assert lab.act("evict", kernel, token="wrong").status == 403
    assert refused(lab, token="") == 403
    assert refused(lab, token="wrong") == 403
    assert kept(lab, kernel) == KEPT


def test_a_cookie_alone_acts_only_with_the_pages_own_secret(lab, kernel):
    cookie, secret = lab.cookies()
    assert lab.act("evict", kernel, token="", Cookie=cookie).status == 403
    assert lab.act("evict", kernel, token="", Cookie=cookie, X_XSRFToken="x").status == 403
    assert kept(lab, kernel) == KEPT
    assert lab.act("evict", kernel, token="", Cookie=cookie, X_XSRFToken=secret).status == 200


def test_a_token_acts(lab, kernel):
    assert lab.act("release", kernel).status == 200


def test_another_origins_page_opens_no_socket_and_acts_with_nothing(lab, kernel):
    cookie, _ = lab.cookies()
    origin = FOREIGN["Origin"]
    assert refused(lab, token="", origin=origin, header=[f"Cookie: {cookie}"]) == 403
    assert lab.act("evict", kernel, token="", Cookie=cookie, **FOREIGN).status in (403, 404)
    for path in ("jgpu/api/evict", "jgpu/api/release"):
        answer = lab.request("GET", path, token="", Cookie=cookie, **FOREIGN)
        assert answer.status in (404, 405)
    assert kept(lab, kernel) == KEPT


def test_what_a_foreign_page_can_bring_about_changes_nothing(lab, kernel):
    cookie, _ = lab.cookies()
    referer = FOREIGN["Referer"]
    answer = lab.request("GET", "jgpu/api/state", token="", Cookie=cookie, Referer=referer)
    assert answer.status == 200
    assert answer.headers["Access-Control-Allow-Origin"] is None
    assert kept(lab, kernel) == KEPT


def test_outside_of_the_servers_path_is_nothing(lab):
    lab.base = "/"
    try:
        assert lab.request("GET", "jgpu/api/state").status == 404
    finally:
        lab.base = BASE


# -- with a hub ----------------------------------------------------------------------------------


@pytest.fixture(scope="module", params=["1", "0"], ids=["extension", "older"])
def hub_lab(request, socket_of, tmp_path_factory):
    """user1's server as a hub starts it, and the hub that says who its visitors are."""
    hub = FakeHub()
    hub.knows("user1", SCOPE)
    directory, address = tmp_path_factory.mktemp("hub-lab"), socket_of("user1")
    environ = {
        "JGPU_ADDRESS": str(address),
        "JUPYTERHUB_ACTIVITY_URL": "",
        "JUPYTERHUB_API_TOKEN": "token-of-user1",
        "JUPYTERHUB_API_URL": hub.url,
        "JUPYTERHUB_CLIENT_ID": "jupyterhub-user-user1",
        "JUPYTERHUB_OAUTH_ACCESS_SCOPES": f'["{SCOPE}"]',
        "JUPYTERHUB_SERVICE_PREFIX": BASE,
        "JUPYTERHUB_SINGLEUSER_EXTENSION": request.param,
        "JUPYTERHUB_USER": "user1",
    }
    try:
        with start_lab(directory, module="jupyterhub.singleuser", **environ) as lab:
            lab.hub, lab.broker = hub, address
            yield lab
    finally:
        hub.close()


def test_a_visitor_of_a_shared_server_reads_and_does_not_act(hub_lab):
    visitor = hub_lab.hub.knows("user2", SCOPE)
    with Notebook(hub_lab.broker, "shared", KEPT), hub_lab.listen(visitor) as page:
        state = page.until(lambda state: state["kernels"].get("shared", {}).get("kept") == KEPT)
        assert not state["may_act"]
        assert not hub_lab.request("GET", "jgpu/api/state", token=visitor).json["may_act"]
        answer = hub_lab.act("evict", "shared", token=visitor)
        assert answer.status == 403
        # A server of the older kind asks for the page's own secret first.
        said = "_xsrf", "You are a visitor here; only the server's owner may do this."
        assert any(each in answer.json["message"] for each in said)
        owner = "token-of-user1"
        row = hub_lab.request("GET", "jgpu/api/state", token=owner).json
        assert row["may_act"]
        assert row["kernels"]["shared"]["kept"] == KEPT


def test_a_service_with_the_owners_name_is_a_visitor(hub_lab):
    model = hub_lab.hub.models["token-of-user1"]
    hub_lab.hub.models["token-of-service"] = model | {"kind": "service"}
    answer = hub_lab.request("GET", "jgpu/api/state", token="token-of-service")
    assert answer.status == 200
    assert not answer.json["may_act"]


def test_whom_the_hub_does_not_let_in_sees_nothing(hub_lab):
    stranger = hub_lab.hub.knows("user3")
    assert hub_lab.request("GET", "jgpu/api/state", token=stranger).status == 403
    assert hub_lab.act("evict", "shared", token=stranger).status == 403
    assert refused(hub_lab, token=stranger) == 403


# -- where it is installed -----------------------------------------------------------------------


def test_a_server_finds_it_by_what_the_wheel_brings(tmp_path):
    root = Path(__file__).parents[2]
    options = tomllib.loads((root / "pyproject.toml").read_text())["tool"]["hatch"]["build"]
    brought = options["targets"]["wheel"]["shared-data"]
    (here,) = (name for name, place in brought.items() if place.startswith("etc/jupyter/"))
    assert brought[here] == "etc/jupyter/jupyter_server_config.d/jgpu.json"
    config = tmp_path / "config"
    (config / "jupyter_server_config.d").mkdir(parents=True)
    shutil.copy(root / here, config / "jupyter_server_config.d")
    listed = processes.run(
        [sys.executable, "-m", "jupyter", "server", "extension", "list"],
        env=os.environ | {"JUPYTER_CONFIG_DIR": str(config)},
        capture_output=True,
        text=True,
        check=True,
    )
    said = listed.stdout + listed.stderr
    _, _, ours = said.partition(f"Config dir: {config}\n")
    lines = ours.partition("Config dir:")[0].splitlines()
    assert any("jgpu.labserver" in line and "OK" in line for line in lines), said
