"""Real notebooks of one person compete for a real broker's device, and JupyterLab says so.

Does not cover states that a broker comes to rarely (`test_page`).
"""

import time

import pytest
from jupyter_pages import Page, needs_chromium, playwright
from shared_jupyter import FIRST, in_front, kill, row, says, shared_jupyter

pytestmark = [pytest.mark.slow, pytest.mark.e2e, needs_chromium, pytest.mark.timeout(300)]

expect = playwright.expect
#: One op of some seconds, which nobody can part.
LONG = "torch.linalg.svd(torch.rand(3000, 3000, device='cuda'))[1][0].item()"
SHORT = "x = x + 1\nx.sum().item()"
#: from a person's asking to the page's showing
INTERRUPT_MS = 2000
NAMES = ("one.ipynb", "other.ipynb", "third.ipynb")


@pytest.fixture(scope="module")
def jupyter(tmp_path_factory):
    with shared_jupyter(tmp_path_factory.mktemp("jupyter")) as made:
        yield made


def test_who_waits_is_seen_and_memory_comes_back_and_nothing_stays_of_what_is_gone(
    browser, jupyter
):
    for name in NAMES:
        jupyter.write(name, FIRST, LONG, SHORT)
    page = Page(browser, jupyter, "lab/tree/one.ipynb?reset").open()
    kernels = {}
    for name in NAMES:
        in_front(page, name)
        kernels[name] = jupyter.kernel(name)
        page.run(0)
        says(page, "GPU · resting")
    page.view.evaluate("void jupyterapp.commands.execute('jgpu:show')")
    for kernel in kernels.values():
        row(page, kernel).wait_for()

    in_front(page, "one.ipynb")
    page.run(1)
    says(page, "GPU · running")
    in_front(page, "other.ipynb")
    page.run(2)
    began = time.monotonic()
    expect(page.cells.nth(2)).to_have_attribute("data-jgpu", "waiting")
    seen = time.monotonic() - began
    says(page, "GPU · waiting, 1 ahead")
    page.mark(2, "waits for the GPU: 1 ahead")
    page.mark(0, "")
    assert seen < 3.0, f"seen after {seen:.2f} s"
    in_front(page, "third.ipynb")
    page.run(2)
    expect(page.view.locator("#jgpu-panel")).to_contain_text("waiting, 2 ahead", timeout=60_000)
    page.view.reload()
    page.ready()
    in_front(page, "other.ipynb")
    says(page, "GPU · resting")
    page.mark(2, "")

    # Release by the popup; the tensor is on the host, and the next cell has it back.
    page.status.click()
    page.view.get_by_role("dialog", name="Shared GPU").get_by_role("button", name="Release").click()
    spilled = page.view.locator(".jgpu-Section .jgpu-Row", has_text="On the host")
    expect(spilled).to_contain_text("4 MiB", timeout=60_000)
    page.view.keyboard.press("Escape")
    page.run(2)
    expect(spilled).to_contain_text("0 B", timeout=60_000)

    # A cell that waits for its turn is interrupted; whoever has the device goes on.
    in_front(page, "one.ipynb")
    page.run(1)
    says(page, "GPU · running")
    in_front(page, "third.ipynb")
    page.run(2)
    page.mark(2, "waits for the GPU: 1 ahead")
    page.view.evaluate("void jupyterapp.commands.execute('notebook:interrupt-kernel')")
    interrupted = page.cells.nth(2)
    expect(interrupted).not_to_have_attribute("data-jgpu", "waiting", timeout=INTERRUPT_MS)
    says(page, "GPU · resting", INTERRUPT_MS)
    expect(interrupted).to_contain_text("KeyboardInterrupt")
    expect(row(page, kernels["one.ipynb"])).to_contain_text("running")
    jupyter.kernel("one.ipynb")

    # A kernel that is shut down, or killed, leaves no row; one that is restarted has none yet.
    ended(
        page,
        kernels["one.ipynb"],
        lambda: (
            row(page, kernels["one.ipynb"])
            .get_by_title("Shut down the kernel of one.ipynb")
            .click()
        ),
    )
    third = kernels["third.ipynb"]
    ended(page, third, lambda: jupyter.ask(f"api/kernels/{third}/restart", {}, "POST"))
    other = kernels["other.ipynb"]
    ended(page, other, lambda: kill(other))
    page.close()


def ended(page, kernel, end):
    """How it ends; no row of it stays longer than two seconds, or so."""
    end()
    began = time.monotonic()
    expect(row(page, kernel)).to_have_count(0, timeout=60_000)
    assert time.monotonic() - began < 5.0
