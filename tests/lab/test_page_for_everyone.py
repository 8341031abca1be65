"""The page for who sees it otherwise: in a person's own colours, enlarged, in a narrow window.

By rules that a machine can check, too (axe-core). Does not cover how it looks in JupyterLab's own
themes (`test_lab_pictures`).
"""

import io
from pathlib import Path

import pytest
from jupyter_pages import Jupyter, needs_chromium, playwright
from PIL import Image
from told_class import OPTION, shows_the_class

pytestmark = [pytest.mark.slow, pytest.mark.e2e, needs_chromium, pytest.mark.timeout(200)]

expect = playwright.expect
LAB = "lab/tree/lesson.ipynb?reset"
AXE = Path(__file__).parent / "node_modules/axe-core/axe.min.js"
OURS = [".jgpu-Status", ".jgpu-Details", "#jgpu-panel", ".jgpu-Running"]
KINDS = ("model", "kept", "spilled")
THEMES = ["JupyterLab Light", "JupyterLab Dark"]
BREACHES = """ours => axe
    .run({ include: ours.filter(each => document.querySelector(each)).map(each => [each]) })
    .then(found => found.violations.flatMap(({ id, nodes }) =>
        nodes.map(node => `${id}: ${node.html} ${node.failureSummary}`)))"""


@pytest.fixture(scope="module")
def jupyter(tmp_path_factory):
    made = Jupyter(tmp_path_factory.mktemp("jupyter"), OPTION)
    yield made
    made.close()


def colours(locator):
    """Those of the pixels in the middle row, from left to right, each as often as it changes."""
    picture = Image.open(io.BytesIO(locator.screenshot())).convert("RGB")
    row = [picture.getpixel((x, picture.height // 2)) for x in range(picture.width)]
    return [colour for before, colour in zip([None, *row], row, strict=False) if colour != before]


def test_where_a_persons_own_colours_replace_the_themes_meters_and_marks_are_seen(browser, jupyter):
    page = shows_the_class(browser, jupyter, LAB, 1280, 1000, forced_colors="active")
    panel = page.view.locator("#jgpu-panel")
    canvas = colours(panel.locator(".jgpu-Empty, .jgpu-Note").first)[0]
    for meter in panel.get_by_role("meter").all():
        assert len(set(colours(meter)) - {canvas}) >= 3  # its edge, what is used, and what is not
    kinds = {tuple(colours(panel.locator(f".jgpu-Mark.jgpu-mod-{kind}").first)) for kind in KINDS}
    assert len(kinds) == len(KINDS)
    assert len(set(colours(page.view.locator(".jgpu-Status [role=progressbar]")))) >= 3
    page.close()


@pytest.mark.parametrize(("width", "scale"), [(640, 2), (400, 1)], ids=["enlarged", "narrow"])
def test_in_little_room_nothing_is_cut(browser, jupyter, width, scale):
    page = shows_the_class(browser, jupyter, LAB, width, 430, device_scale_factor=scale)
    cell = page.cells.nth(1)
    begins = "(node, part) => parseFloat(getComputedStyle(node, part).marginLeft)"
    left = cell.evaluate(begins, "::after") + cell.bounding_box()["x"]
    assert abs(left - cell.locator(".jp-InputArea-editor").bounding_box()["x"]) < 12
    page.status.click()
    box = page.view.get_by_role("dialog", name="Shared GPU").bounding_box()
    assert box["x"] >= 0
    assert box["x"] + box["width"] <= width
    assert box["y"] >= 0
    page.close()


@pytest.mark.long
@pytest.mark.skipif(not AXE.exists(), reason="needs axe-core, which make test-long installs")
@pytest.mark.parametrize("theme", THEMES)
def test_no_rule_that_a_machine_can_check_is_broken(browser, jupyter, theme):
    jupyter.set({"@jupyterlab/apputils-extension:themes": {"theme": theme}})
    page = shows_the_class(browser, jupyter, LAB, 1280, 1000)
    page.view.get_by_role("tab", name="Running Terminals and Kernels").click()
    page.view.locator(".jgpu-Running").first.wait_for()
    page.status.click()
    page.view.get_by_role("dialog", name="Shared GPU").wait_for()
    page.view.evaluate(AXE.read_text())
    assert page.view.evaluate(BREACHES, OURS) == []
    page.close()
