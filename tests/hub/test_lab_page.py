"""A student's JupyterLab behind a hub's proxy: their notebook, and why it waits."""

import os
from pathlib import Path

import nbformat
import pytest
from lab import DEADLINE_S, Lab
from windows import chromium, needs_chromium, playwright

from jgpu.wire.asking import ask
from jgpu.wire.messages import Drain

pytestmark = [
    pytest.mark.slow,
    pytest.mark.e2e,
    pytest.mark.usefixtures("needs_lab"),
    needs_chromium,
    pytest.mark.timeout(300),
]

expect = playwright.expect
BUILT = Path(__file__).parents[2] / "labextension/built"
USERS = {"user1": ["class1"], "user2": ["class1"]}
FIRST = "import torch\nx = torch.ones(1 << 20, device='cuda')\nx.sum().item()"
SECOND = "x = x + 1\nx.sum().item()"
#: the extension as the repository has it, before what an environment may have of an older one
EXTENSION = """
c.Spawner.args = [
    "--LabApp.extra_labextensions_path={}",
    "--LabApp.expose_app_in_browser=True",
]
"""


@pytest.fixture
def lab(needs_lab, tmp_path_factory):
    lab = Lab(USERS, "--lanes", "1", "--memory", "1G")
    folder = lab.directory / "labextensions/@jgpu"
    folder.mkdir(parents=True)
    (folder / "lab").symlink_to(BUILT)
    lab.extra = EXTENSION.format(folder.parent)
    del lab.environ["JUPYTERHUB_SINGLEUSER_APP"]  # what a hub starts by itself has JupyterLab
    with lab:
        yield lab


class Student:
    """A user's JupyterLab in a browser, on one notebook."""

    def __init__(self, browser, lab, user):
        self.view = browser.new_context(viewport={"width": 1280, "height": 800}).new_page()
        self.view.set_default_timeout(1000 * DEADLINE_S)
        self.problems = []
        self.view.on("console", self._console)
        home = lab.directory / f"homes/{user}"
        made = nbformat.v4.new_notebook(
            cells=[nbformat.v4.new_code_cell(source) for source in (FIRST, SECOND)],
            metadata={"kernelspec": {"name": "python3", "display_name": "Python 3"}},
        )
        nbformat.write(made, home / "lesson.ipynb")
        os.chown(home / "lesson.ipynb", home.stat().st_uid, home.stat().st_gid)
        self.view.goto(f"{lab.url}/hub/login?next=/lab/user/{user}/lab/tree/lesson.ipynb")
        self.view.fill("input[name=username]", user)
        self.view.fill("input[name=password]", "lesson")
        self.view.click("input[type=submit], button[type=submit]")
        self.view.wait_for_selector(".jp-Notebook .jp-CodeCell:visible")

    def _console(self, message):
        if "@jgpu" in message.location.get("url", "") and message.type in ("error", "warning"):
            self.problems.append(message.text)

    def run(self, number):
        """Run a cell by the keyboard, as a person does."""
        cell = self.view.locator(".jp-Notebook:visible .jp-CodeCell").nth(number)
        cell.locator(".cm-content").click()
        self.view.keyboard.press("Control+Enter")

    def says(self, text):
        """Wait until the status has this in it."""
        status = self.view.locator(".jgpu-Status:visible [role=button]")
        expect(status).to_contain_text(text, timeout=1000 * DEADLINE_S)

    def command(self, name):
        """Do one of JupyterLab's commands."""
        self.view.evaluate(f"void jupyterapp.commands.execute('{name}')")


@pytest.fixture(scope="module")
def browser():
    with chromium() as found:
        yield found


def test_students_of_a_hub_see_their_own_part_alone(browser, lab):
    lab.start_servers(*USERS)
    one, other = (Student(browser, lab, user) for user in USERS)
    for student in (one, other):
        student.says("GPU · not in use")
        student.run(0)
        student.says("GPU · resting · 4 MiB")
    assert {each.label.rpartition("/")[2] for each in lab.report().sessions} == {"lesson.ipynb"}

    ask(lab.admin, Drain(), DEADLINE_S)
    one.run(1)
    one.says("GPU · waiting")
    expect(one.view.locator("[data-jgpu='waiting']")).to_have_count(1)
    expect(other.view.locator("[data-jgpu='waiting']")).to_have_count(0)
    other.says("GPU · resting")
    ask(lab.admin, Drain(on=False), DEADLINE_S)
    one.says("GPU · resting")

    one.command("jgpu:show")
    expect(one.view.locator(".jgpu-Kernel")).to_have_count(1)
    assert "user2" not in one.view.locator("#jgpu-panel").inner_text()
    one.command("jgpu:release")
    one.says("GPU · resting")
    assert one.problems == other.problems == []
