"""Pictures of JupyterLab and Notebook 7 with a class at work, for `docs/pictures`."""

from pathlib import Path

import pytest
from jupyter_pages import Jupyter, needs_chromium
from told_class import OPTION, shows_the_class

pytestmark = [pytest.mark.long, pytest.mark.e2e, needs_chromium, pytest.mark.timeout(300)]

PICTURES = Path(__file__).parents[2] / "docs/pictures"
THEMES = {
    "light": "JupyterLab Light",
    "dark": "JupyterLab Dark",
    "contrast": "JupyterLab Dark High Contrast",
}
#: In which the panel has room for all its parts.
HEIGHT = 1000


@pytest.fixture(scope="module")
def jupyter(tmp_path_factory):
    made = Jupyter(tmp_path_factory.mktemp("jupyter"), OPTION)
    yield made
    made.close()


@pytest.mark.parametrize("theme", THEMES)
def test_jupyterlab_in_each_theme(browser, jupyter, theme):
    jupyter.set({"@jupyterlab/apputils-extension:themes": {"theme": THEMES[theme]}})
    take(browser, jupyter, "lab/tree/lesson.ipynb?reset", f"lab-{theme}.png", HEIGHT)


def test_notebook_7(browser, jupyter):
    jupyter.set({"@jupyterlab/apputils-extension:themes": {"theme": THEMES["light"]}})
    take(browser, jupyter, "notebooks/lesson.ipynb", "lab-notebook.png", 560)


def take(browser, jupyter, path, name, height):
    """A picture of a lesson that waits, with what the status opens."""
    page = shows_the_class(browser, jupyter, path, 1280, height)
    page.status.click()
    page.view.get_by_role("dialog", name="Shared GPU").wait_for()
    page.view.screenshot(path=PICTURES / name)
    page.close()
