"""The oldest hub that Kubernetes' distribution ships, and this one: the same lesson in both."""

import signal
import sys

import jupyterhub
import processes
import pytest
from lab import Lab, until
from lessons import losses_alone, trained

pytestmark = [pytest.mark.long, pytest.mark.e2e, pytest.mark.usefixtures("needs_lab")]

STEPS = 2_000


@pytest.fixture(scope="module", params=["5.5.0", ""], ids=["5.5.0", "as installed"])
def version(request, tmp_path_factory):
    """(version, folder with its packages): beside the rest of this environment."""
    if not request.param:
        return jupyterhub.__version__, None
    return request.param, tmp_path_factory.mktemp("hub")


@pytest.mark.timeout(400)
def test_a_lesson_in_each_version_of_the_hub(version, package_index, needs_lab):
    number, folder = version
    if folder is not None:
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps"]
        processes.run([*pip, "--target", folder, f"jupyterhub=={number}"], check=True)
        for each in (folder, *folder.parents):
            if each.stat().st_uid == 0 and str(each).startswith("/tmp/"):
                each.chmod(each.stat().st_mode | 0o055)
    properties = {"tutors": {"jgpu": {"weight": 2, "memory": "1G"}}}
    with Lab({"user1": ["tutors"]}, "--lanes", "1", properties=properties, packages=folder) as lab:
        assert lab.api("GET", "/").json()["version"] == number
        assert "Shared GPU: at most 1.00 GiB of its memory." in lab.progress("user1")
        kernel = lab.kernel("user1")
        kernel.until_printed(kernel.begin(trained(STEPS)), "begun")
        lab.end_hub(signal.SIGKILL)
        lab.start_hub()
        kernel.connect()
        assert kernel.ok("print([x.hex() for x in losses])") == losses_alone(STEPS)
        (user,) = lab.report().users
        assert (user.name, user.groups, user.weight) == ("user1", ("tutors",), 2.0)
        lab.stop_server("user1")
        until(lambda: not lab.sessions(), "the session's end")
