"""The wheel in environments of its own, without node: the oldest JupyterLab and the newest.

Each has its own Jupyter server, kernels and broker. Does not cover all that a page shows
(`test_page`), which is tested with the JupyterLab that is installed here.
"""

import os
import shutil
import sys
import time
from pathlib import Path

import processes
import pytest
import world
from jupyter_pages import Page, needs_chromium, playwright
from results import write_result
from shared_jupyter import FIRST, shared_jupyter

pytestmark = [pytest.mark.long, pytest.mark.e2e, needs_chromium, pytest.mark.timeout(1200)]

ROOT = Path(__file__).parents[2]
TORCH = "torch==2.13.0"
VERSIONS = {
    "oldest": ["jupyterlab==4.2.0", "notebook==7.2.0", "jupyter_server==2.14.0"],
    "newest": ["jupyterlab", "notebook", "jupyter_server"],
}
MEMORY = "GPU · resting · 4 MiB"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """What users install."""
    folder = tmp_path_factory.mktemp("wheel")
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", folder]
    processes.run([*pip, ROOT], check=True, env=os.environ | world.PACKAGES, timeout=300)
    (made,) = folder.glob("*.whl")
    return made


@pytest.fixture(scope="module")
def figures():
    """By name of the versions; written when all are through."""
    found = {}
    yield found
    write_result("jupyterlab-versions", {"versions": found})


@pytest.mark.parametrize("which", VERSIONS)
def test_it_installs_and_says_what_a_real_kernel_does(
    browser, wheel, figures, which, tmp_path, monkeypatch
):
    folders = os.environ["PATH"].split(os.pathsep)
    without_node = [each for each in folders if not (Path(each) / "node").exists()]
    monkeypatch.setenv("PATH", os.pathsep.join(without_node))
    assert shutil.which("node") is None
    began = time.monotonic()
    place = tmp_path / "venv"
    processes.run([sys.executable, "-m", "venv", place], check=True)
    python = str(place / "bin/python")
    wanted = [f"{wheel}[broker,lab]", TORCH, *VERSIONS[which]]
    install = [python, "-m", "pip", "install", "--quiet", *wanted]
    processes.run(install, check=True, env=os.environ | world.PACKAGES, timeout=900)
    installed_s = time.monotonic() - began
    assert_ok(python, "labextension", "@jgpu/lab")
    assert_ok(python, "server", "jgpu.labserver")
    with shared_jupyter(tmp_path, python) as jupyter:
        jupyter.write("lesson.ipynb", FIRST)
        shown_s = {
            path.split("/")[0]: says_what_is_so(browser, jupyter, path)
            for path in ("lab/tree/lesson.ipynb?reset", "notebooks/lesson.ipynb")
        }
    figures[which] = {
        "installed": versions(python),
        "install_s": round(installed_s, 1),
        "shown_s": shown_s,
        "problems": 0,
    }


def assert_ok(python, what, name):
    """`jupyter <what> list` has the extension, and says that it is in order."""
    command = [python, "-m", "jupyter", what, *(["extension"] if what == "server" else []), "list"]
    done = processes.run(command, capture_output=True, text=True, check=True)
    said = done.stdout + done.stderr
    lines = said.splitlines()
    at = next(number for number, line in enumerate(lines) if name in line)
    assert any("OK" in line for line in lines[at : at + 3]), said


def says_what_is_so(browser, jupyter, path):
    """Before the notebook has used the GPU and after; seconds from the cell's start."""
    page = Page(browser, jupyter, path).open()
    kernel = jupyter.kernel("lesson.ipynb")
    playwright.expect(page.status).to_contain_text("GPU · ")
    began = time.monotonic()
    page.run(0)
    page.says(MEMORY)
    took = round(time.monotonic() - began, 2)
    page.status.click()
    details = page.view.get_by_role("dialog", name="Shared GPU")
    details.get_by_text("This notebook asks nothing of the GPU now.").wait_for()
    details.get_by_role("button", name="Release").click()
    page.view.get_by_text("goes to the host, and comes back by itself").first.wait_for()
    page.close()
    jupyter.ask(f"api/kernels/{kernel}", method="DELETE")
    return took


def versions(python):
    """What the environment has, by name."""
    names = ["jupyterlab", "notebook", "jupyter_server", "jgpu", "torch"]
    code = "import importlib.metadata as m, sys; print(*map(m.version, sys.argv[1:]))"
    done = processes.run([python, "-c", code, *names], capture_output=True, text=True, check=True)
    return dict(zip(names, done.stdout.split(), strict=True))
