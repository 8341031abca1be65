"""The oldest hub that Kubernetes' distribution ships, and this one: the same lesson in both."""

import os
import signal
import sys
from pathlib import Path

import jupyterhub
import processes
import pytest
import world
from lab import Lab, until
from lessons import losses_alone, trained

sys.path.append(str(Path(__file__).with_name("page")))

from page_parts import free_port, open_session
from windows import Window, chromium, needs_chromium, page_of_a_hub

pytestmark = [pytest.mark.long, pytest.mark.e2e, pytest.mark.usefixtures("needs_lab")]

STEPS = 2_000


@pytest.fixture(scope="module", params=["5.5.0", ""], ids=["5.5.0", "as installed"])
def version(request, tmp_path_factory):
    """(version, folder with its packages): beside the rest of this environment."""
    if not request.param:
        return jupyterhub.__version__, None
    folder = tmp_path_factory.mktemp("hub")
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps"]
    environ = os.environ | world.PACKAGES
    processes.run(
        [*pip, "--target", folder, f"jupyterhub=={request.param}"], env=environ, check=True
    )
    for each in (folder, *folder.parents):
        if each.stat().st_uid == 0 and str(each).startswith("/tmp/"):
            each.chmod(each.stat().st_mode | 0o055)
    return request.param, folder


@pytest.mark.timeout(400)
def test_a_lesson_in_each_version_of_the_hub(version, needs_lab):
    number, folder = version
    properties = {"tutors": {"jgpu": {"weight": 2, "memory": "1G"}}}
    with Lab({"user1": ["tutors"]}, "--lanes", "1", properties=properties, packages=folder) as lab:
        assert lab.api("GET", "/").json()["version"] == number
        assert "Shared GPU: at most 1 GiB of its memory." in lab.progress("user1")
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


@needs_chromium
@pytest.mark.timeout(300)
def test_the_page_in_each_version_of_the_hub(version, needs_lab):
    number, folder = version
    users = {"user1": ["class1"], "boss1": ["staff"]}
    extra = page_of_a_hub(free_port())
    with Lab(users, device="null", extra=extra, packages=folder) as lab, chromium() as browser:
        assert lab.api("GET", "/").json()["version"] == number
        client = open_session(lab.admin, "user1", ("class1",), 1)
        student = Window.of(browser, lab, "user1")
        student.shows(student.view.get_by_role("cell", name="notebooks-of-user1/train.ipynb"))
        assert student.view.get_by_role("button", name="Drain").count() == 0
        view = Window.of(browser, lab, "boss1").view
        view.get_by_role("link", name="People").click()
        view.get_by_role("link", name="Set what user1 may have").click()
        view.get_by_label("weight").fill("3")
        view.get_by_label("weight").press("Enter")
        until(lambda: lab.report().users[0].weight == 3.0, "the weight")
        client.close()
