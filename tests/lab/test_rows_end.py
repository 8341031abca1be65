"""However a kernel ends, two seconds after the broker knows of it no page shows it any more.

One notebook, seen by two pages: restarted, closed in one of them, interrupted and killed
while it waits, shut down.
"""

import pytest
from jupyter_pages import Page, needs_chromium, playwright, until
from shared_jupyter import FIRST, in_front, kill, row, says, shared_jupyter

from jgpu.wire.asking import ask
from jgpu.wire.messages import AskStatus, Drain
from jgpu.wire.reports.report import decode

pytestmark = [pytest.mark.slow, pytest.mark.e2e, needs_chromium, pytest.mark.timeout(200)]

expect = playwright.expect
#: from the broker's knowing to the page's
END_MS = 2000
NAME = "lesson.ipynb"
ACCEPT = ".jp-Dialog button.jp-mod-accept"
#: as a page knows; one that was killed in the midst of a cell may stay busy for the server, and be
#: unknown or starting to the page: what the next one says as it starts can be lost, and answers
#: to requests for its info do not count
KERNEL_TAKES_CELLS = """() => {
  const kernel = jupyterapp.shell.currentWidget?.sessionContext?.session?.kernel;
  const at_it = ["busy", "restarting", "autorestarting", "terminating", "dead"];
  return kernel?.connectionStatus === "connected" && !at_it.includes(kernel.status);
}"""


@pytest.fixture
def jupyter(tmp_path):
    with shared_jupyter(tmp_path) as made:
        made.write(NAME, FIRST, "y = x + 1\ny.sum().item()")
        yield made


def opened(browser, jupyter):
    """A page with everything that shows a kernel."""
    page = Page(browser, jupyter, f"lab/tree/{NAME}?reset").open()
    page.view.evaluate("void jupyterapp.commands.execute('jgpu:show')")
    page.view.get_by_role("tab", name="Running Terminals and Kernels").click()
    return page


def begun(kernel, asking, *others):
    """Have the notebook use the GPU; every page shows it."""
    asking.view.wait_for_function(KERNEL_TAKES_CELLS)  # it may have been restarted
    asking.run(0)
    for page in (asking, *others):
        row(page, kernel).wait_for()
        expect(page.view.locator(".jgpu-Running")).to_have_count(1)


def test_no_row_outlives_its_kernel_by_two_seconds(browser, jupyter):
    one, other = opened(browser, jupyter), opened(browser, jupyter)
    kernel = jupyter.kernel(NAME)
    begun(kernel, one, other)
    says(other, "GPU · resting")

    one.view.evaluate("void jupyterapp.commands.execute('notebook:restart-kernel')")
    one.view.locator(ACCEPT).click()
    gone(jupyter, kernel, one, other)
    says(one, "GPU · not in use")
    says(other, "GPU · not in use")

    # A notebook that is only closed keeps its kernel: the rows stay, the status goes.
    begun(kernel, one, other)
    one.view.evaluate("jupyterapp.commands.execute('docmanager:save').then(() => true)")
    one.view.evaluate("void jupyterapp.commands.execute('application:close')")
    expect(one.status).to_have_count(0, timeout=END_MS)
    expect(row(one, kernel)).to_have_count(1)
    says(other, "GPU · resting")
    in_front(one, NAME)
    says(one, "GPU · resting")

    ask(jupyter.broker, Drain(), 15)
    waits(one, other)
    one.view.evaluate("void jupyterapp.commands.execute('notebook:interrupt-kernel')")
    expect(one.cells.nth(1)).not_to_have_attribute("data-jgpu", "waiting", timeout=END_MS)
    for page in (one, other):
        says(page, "GPU · resting", END_MS)
    jupyter.kernel(NAME)  # is idle: whatever reaches it before that, after an error, it skips
    waits(one, other)
    kill(kernel)
    gone(jupyter, kernel, one, other)
    ask(jupyter.broker, Drain(on=False), 15)
    for page in (one, other):
        page.view.locator(ACCEPT).click()  # JupyterLab says that it died
        expect(page.view.locator(".jp-Dialog")).to_have_count(0)

    # The last kernel of all: nothing is left to be told of.
    begun(kernel, one, other)
    row(one, kernel).get_by_title(f"Shut down the kernel of {NAME}").click()
    gone(jupyter, kernel, one, other)
    until(lambda: not one.listens and not other.listens, "closed sockets")
    one.close()
    other.close()


def waits(asking, other):
    """Have the second cell wait; both pages say so."""
    asking.run(1)
    says(asking, "GPU · waiting")
    says(other, "GPU · waiting")
    expect(asking.cells.nth(1)).to_have_attribute("data-jgpu", "waiting")


def gone(jupyter, kernel, *pages):
    """From the broker's knowing on there are two seconds for all pages."""
    until(lambda: not has_session(jupyter, kernel), "the session's end")
    shown = "[data-jgpu='waiting'], .jgpu-Running, .jgpu-Kernel"
    for page in pages:
        expect(page.view.locator(shown)).to_have_count(0, timeout=END_MS)


def has_session(jupyter, kernel):
    report = decode(ask(jupyter.broker, AskStatus(), 15).json)
    return any(each.kernel_id == kernel for each in report.sessions)
