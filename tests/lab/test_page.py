"""What a page of JupyterLab, or of Notebook 7, shows of the state that its server tells it.

The server is real, and so are its kernels and the browser; the state is the test's (`told_state`).
Does not cover the broker's part (`test_two_notebooks`).
"""

import time

import pytest
from jupyter_pages import Jupyter, Page, needs_chromium, playwright, until

pytestmark = [pytest.mark.slow, pytest.mark.e2e, needs_chromium, pytest.mark.timeout(200)]

GIB = 1 << 30
expect = playwright.expect
#: A cell that is under way until the file is there.
WAITS = "import os, time\nwhile not os.path.exists('go'):\n    time.sleep(0.01)"
LESSON = ["x = 1", WAITS, "x"]
OPTION = '--ServerApp.jpserver_extensions={"told_state": True, "jgpu.labserver": False}'


@pytest.fixture(scope="module")
def jupyter(tmp_path_factory):
    settings = {"@jgpu/lab:cells": {"cell_seconds": True}}
    made = Jupyter(tmp_path_factory.mktemp("jupyter"), OPTION, settings=settings)
    made.write("lesson.ipynb", *LESSON)
    yield made
    made.close()


@pytest.fixture(scope="module")
def looked_at(browser, jupyter):
    """JupyterLab on a notebook that runs nothing; for tests that leave it so."""
    jupyter.write("looked_at.ipynb", "1")
    page = Page(browser, jupyter, "lab/tree/looked_at.ipynb?reset").open()
    page.kernel = jupyter.kernel("looked_at.ipynb")
    yield page
    page.close()


@pytest.fixture
def page(browser, jupyter):
    """JupyterLab on the lesson, whose kernel has begun nothing."""
    (jupyter.notebooks / "go").unlink(missing_ok=True)
    jupyter.write("lesson.ipynb", *LESSON)
    jupyter.end_kernels()
    page = Page(browser, jupyter, "lab/tree/lesson.ipynb?reset").open()
    page.kernel = jupyter.kernel("lesson.ipynb")
    yield page
    page.close()


def tell(jupyter, kernels, **more):
    """Tell the pages; what they have asked for so far."""
    share = {
        "user": "user1",
        "weight": 1.0,
        "sessions": len(kernels),
        "most_sessions": 0,
        "used": int(1.2 * GIB),
        "memory": 4 * GIB,
        "resident": GIB,
        "most_resident": 0,
        "budget": 3600,
        "period": 86400,
        "spent": 60,
        "state": "within",
    }
    state = {
        "at": time.time(),
        "problem": "",
        "known": True,
        "may_act": True,
        "shares": True,
        "drain": "",
        "kernels": kernels,
        "share": share,
    }
    return jupyter.ask("jgpu/told", state | more)


def session(state="idle", path="lesson.ipynb", **more):
    """A kernel's part of the state."""
    memory = {"held": GIB + GIB // 4, "model": GIB, "kept": GIB // 4, "spilled": 0}
    return {"session": 12, "path": path, "state": state} | memory | {"device_seconds": 3.0} | more


def waiting(ahead):
    return session("waiting", waits_on="turn", ahead=ahead, cell="2", behind=["user2"])


def test_memory_is_released_by_keyboard_from_what_the_status_opens(jupyter, looked_at):
    page = looked_at
    tell(jupyter, {page.kernel: session()})
    page.status.press("Enter")
    details = page.view.get_by_role("dialog", name="Shared GPU")
    details.get_by_text("This notebook asks nothing of the GPU now.").wait_for()
    expect(details.locator(".jgpu-Row", has_text="This notebook holds")).to_contain_text("1.25 GiB")
    details.get_by_text("1 min of 1 h in 1 d").wait_for()
    details.get_by_role("button", name="Release").press("Enter")
    page.view.get_by_text("Done: release.").first.wait_for()
    assert tell(jupyter, {})["posted"][-1] == ["release", {"kernel": page.kernel}]
    page.view.keyboard.press("Escape")
    expect(details).to_have_count(0)


def test_visitors_have_nothing_to_press(jupyter, looked_at):
    page = looked_at
    tell(jupyter, {page.kernel: session()}, may_act=False)
    page.status.click()
    page.view.get_by_role("dialog", name="Shared GPU").wait_for()
    page.view.keyboard.press("Escape")
    open_panel(page)
    row = page.view.locator(f"[data-jgpu-kernel='{page.kernel}']")
    row.wait_for()
    for name in ("Release", "Evict", "Shut down the kernel of lesson.ipynb"):
        assert page.view.get_by_role("button", name=name).count() == 0
    enabled = "jupyterapp.commands.isEnabled('jgpu:release')"
    assert page.view.evaluate(enabled) is False
    tell(jupyter, {page.kernel: session()})
    row.get_by_role("button", name="Evict").wait_for()
    assert page.view.evaluate(enabled) is True


def test_old_figures_are_grey_and_one_sentence_says_why_until_it_is_over(jupyter, looked_at):
    page = looked_at
    open_panel(page)
    tell(
        jupyter,
        {page.kernel: session()},
        problem="The broker does not answer; it is started again.",
    )
    stale = page.view.locator("#jgpu-panel").get_by_role("status")
    expect(stale).to_have_text("The broker does not answer; it is started again.")
    page.says("GPU · resting · 1.2/4 GiB")
    assert page.status.evaluate("node => getComputedStyle(node.parentElement).opacity") < "1"
    tell(jupyter, {page.kernel: session()})
    expect(stale).to_have_count(0)
    assert page.status.evaluate("node => getComputedStyle(node.parentElement).opacity") == "1"


def test_a_kernel_that_never_uses_it_and_no_quota_are_said_plainly(jupyter, looked_at):
    page = looked_at
    page.view.on("dialog", lambda dialog: page.problems.append(dialog.message))
    without = {"memory": 0, "most_resident": 0, "budget": 0}
    share = {"user": "user1", "weight": 1.0, "sessions": 1, "most_sessions": 0}
    share |= {"used": int(1.2 * GIB), "resident": GIB, "period": 86400, "spent": 60}
    share |= {"state": "within"} | without
    tell(jupyter, {}, share=share | {"used": 0, "sessions": 0})  # as with a kernel of R
    page.says("GPU · not in use")
    tell(jupyter, {page.kernel: session()}, share=share)
    page.says("GPU · resting · 1.2 GiB")
    assert page.status.locator("[role=progressbar]").count() == 0
    page.status.click()
    details = page.view.get_by_role("dialog", name="Shared GPU")
    details.get_by_text("1 min, no limit").wait_for()
    page.view.keyboard.press("Escape")
    expect(page.view.locator(".jp-Dialog")).to_have_count(0)


@pytest.mark.parametrize("wrong", [-86_400 * 400, 86_400 * 400], ids=["behind", "ahead"])
def test_a_servers_clock_that_is_wrong_changes_no_time_that_is_shown(jupyter, looked_at, wrong):
    page = looked_at
    at = time.time() + wrong
    row = waiting(1) | {"waits_since": at - 200}
    tell(jupyter, {page.kernel: row}, at=at)
    page.says("GPU · waiting, 1 ahead · 1.2/4 GiB")
    page.status.click()
    details = page.view.get_by_role("dialog", name="Shared GPU")
    expect(details).to_contain_text("3 min")
    page.view.keyboard.press("Escape")
    tell(jupyter, {page.kernel: session()})
    page.says("GPU · resting · 1.2/4 GiB")


def test_names_are_cut_and_are_never_markup(jupyter, looked_at):
    page = looked_at
    open_panel(page)
    evil = "<img src=x onerror=window.broken=1>.ipynb"
    others = {"2": {"user": "<b>user2</b>", "own": False, "state": "running", "device_seconds": 1}}
    device = {"name": "<i>GPU</i>", "kind": "cuda", "state": "ready", "capacity": GIB, "used": 0}
    tell(
        jupyter,
        {"a": session(path="x" * 10_000 + ".ipynb"), "b": session(path=evil, session=13)},
        device=device | {"lanes": {"0": {"session": 2, "members": 1}}, "sessions": others},
    )
    panel = page.view.locator("#jgpu-panel")
    panel.locator("[data-jgpu-kernel='b']").get_by_text(evil).wait_for()
    panel.get_by_text("<b>user2</b>").wait_for()
    assert len(panel.locator("[data-jgpu-kernel='a'] .jgpu-Name").inner_text()) <= 60
    # What is drawn beyond the panel's edge would be under the notebook.
    wide = "node => node.scrollWidth <= node.clientWidth"
    assert all(section.evaluate(wide) for section in panel.locator(".jgpu-Section").all())
    assert page.view.evaluate("window.broken") is None


def test_the_cell_that_waits_says_so_in_its_place_also_after_a_reload(jupyter, page):
    tell(jupyter, {page.kernel: session()})
    page.says("GPU · resting · 1.2/4 GiB")
    page.run(0, 1, 2)
    tell(jupyter, {page.kernel: waiting(2)})
    page.says("GPU · waiting, 2 ahead · 1.2/4 GiB")
    page.mark(1, "waits for the GPU: 2 ahead")
    page.mark(0, "")
    page.mark(2, "")
    assert page.view.locator(".jgpu-Spoken").first.inner_text() == "waiting, 2 ahead"
    page.view.keyboard.press("Control+s")
    page.view.reload()
    page.ready()
    page.says("GPU · waiting, 2 ahead · 1.2/4 GiB")
    page.mark(1, "waits for the GPU: 2 ahead")
    tell(jupyter, {page.kernel: waiting(0)})
    page.mark(1, "waits for the GPU: next")
    tell(jupyter, {page.kernel: session("running", cell="2")})
    page.says("GPU · running · 1.2/4 GiB")
    page.mark(1, "")


def test_a_done_cell_says_what_it_took_where_that_is_wanted(jupyter, page):
    (jupyter.notebooks / "go").touch()
    page.run(0, 1)
    jupyter.kernel("lesson.ipynb")
    tell(jupyter, {page.kernel: session(cells={"1": 0.25})})
    first = page.cells.nth(0)
    expect(first).to_have_attribute("data-jgpu", "done")
    assert first.get_attribute("data-jgpu-text").startswith("GPU 0.25 s of ")
    expect(page.cells.nth(1)).not_to_have_attribute("data-jgpu", "done")
    # It stays when newer cells push it out of what the server tells.
    tell(jupyter, {page.kernel: session(cells={})})
    page.says("GPU · resting · 1.2/4 GiB")
    expect(first).to_have_attribute("data-jgpu", "done")


def test_a_hidden_tab_sends_and_gets_nothing_and_follows_again_when_it_is_seen(jupyter, page):
    tell(jupyter, {page.kernel: session()})
    page.says("GPU · resting · 1.2/4 GiB")
    page.view.clock.install()
    page.hide()
    until(lambda: not page.listens, "a closed socket")
    tell(jupyter, {page.kernel: waiting(1)})
    before = list(page.asked)
    page.view.clock.run_for(60_000)
    assert page.asked == before
    page.hide(hidden=False)
    page.view.clock.run_for(100)
    page.says("GPU · waiting, 1 ahead · 1.2/4 GiB")


@pytest.mark.long
def test_where_websockets_are_blocked_it_asks_every_five_seconds(browser, jupyter):
    page = Page(browser, jupyter, "lab/tree/lesson.ipynb?reset")
    page.view.route_web_socket("**/jgpu/api/watch*", lambda socket: socket.close())
    page.open()
    kernel = jupyter.kernel("lesson.ipynb")
    tell(jupyter, {kernel: session()})
    page.says("GPU · resting · 1.2/4 GiB")
    before = tell(jupyter, {kernel: waiting(3)})["polled"]
    page.says("GPU · waiting, 3 ahead · 1.2/4 GiB")
    assert tell(jupyter, {})["polled"] - before <= 2
    page.close()


@pytest.mark.long
def test_where_websockets_open_and_are_held_back_it_asks_as_well(browser, jupyter):
    page = Page(browser, jupyter, "lab/tree/lesson.ipynb?reset")
    page.view.route_web_socket("**/jgpu/api/watch*", lambda socket: None)  # open, and silent
    page.open()
    kernel = jupyter.kernel("lesson.ipynb")
    tell(jupyter, {kernel: session()})
    page.says("GPU · resting · 1.2/4 GiB")
    assert tell(jupyter, {kernel: waiting(3)})["polled"] > 0
    page.says("GPU · waiting, 3 ahead · 1.2/4 GiB")
    page.close()


def test_a_page_that_is_let_in_no_more_says_so_and_is_back_when_it_is_again(browser, jupyter):
    page = Page(browser, jupyter, "lab/tree/lesson.ipynb?reset")
    refused = []
    page.view.route_web_socket(
        "**/jgpu/api/watch*", lambda line: line.close() if refused else line.connect_to_server()
    )
    page.open()
    kernel = jupyter.kernel("lesson.ipynb")
    open_panel(page)
    tell(jupyter, {kernel: session()})
    page.says("GPU · resting · 1.2/4 GiB")
    page.hide()
    page.asked.clear()
    page.may_fail = True
    refused.append(page.view.route("**/jgpu/api/state*", lambda asked: asked.fulfill(status=403)))
    page.hide(hidden=False)
    stale = page.view.locator("#jgpu-panel").get_by_role("status")
    says = "The notebook server lets this page in no more; reload it to sign in again."
    expect(stale).to_have_text(says, timeout=60_000)
    page.says("GPU · resting · 1.2/4 GiB")
    assert sum("watch" in url for url in page.asked) <= 3
    refused.clear()
    page.view.unroute("**/jgpu/api/state*")
    tell(jupyter, {kernel: waiting(1)})
    page.says("GPU · waiting, 1 ahead · 1.2/4 GiB")
    expect(stale).to_have_count(0)
    page.close()


def test_what_runs_lists_it_and_a_kernel_that_is_gone_leaves_no_row(jupyter, page):
    tell(jupyter, {page.kernel: session()})
    page.view.get_by_role("tab", name="Running Terminals and Kernels").click()
    row = page.view.locator(".jgpu-Running")
    expect(row).to_contain_text("lesson.ipynb")
    row.click(button="right")
    page.view.get_by_role("menuitem", name="Release GPU Memory", exact=True).click()
    page.view.get_by_text("Done: release.").first.wait_for()
    row.hover()
    row.locator("[title='Shut Down Kernel']").click()
    until(lambda: jupyter.kernels() == [], "no kernel")
    expect(row).to_have_count(0)  # though the server has said nothing yet
    assert tell(jupyter, {})["posted"][-1] == ["release", {"kernel": page.kernel}]
    # Without a kernel nothing is followed.
    until(lambda: not page.listens, "a closed socket")


def test_a_notebook_has_the_name_that_it_has_now_and_is_opened_by_it(jupyter, page):
    jupyter.write("other.ipynb", "1")
    # As kernels say it: the whole path, and that of their beginning.
    tell(jupyter, {page.kernel: session(path=str(jupyter.notebooks / "lesson.ipynb"))})
    open_panel(page)
    page.view.get_by_role("tab", name="Running Terminals and Kernels").click()
    row = page.view.locator(".jgpu-Running")
    expect(row).to_contain_text("lesson.ipynb")
    page.view.evaluate(
        "void jupyterapp.serviceManager.contents.rename('lesson.ipynb', 'renamed.ipynb')"
    )
    expect(row).to_contain_text("renamed.ipynb")
    listed = page.view.locator(f"[data-jgpu-kernel='{page.kernel}']")
    expect(listed).to_have_attribute("aria-label", "renamed.ipynb")
    page.view.evaluate("void jupyterapp.commands.execute('docmanager:open', {path: 'other.ipynb'})")
    page.view.get_by_role("tab", name="other.ipynb", selected=True).wait_for()
    jupyter.kernel("other.ipynb")  # what is begun is there before the page closes
    row.get_by_text("renamed.ipynb").click()
    page.view.get_by_role("tab", name="renamed.ipynb", selected=True).wait_for()


def test_notebook_7_has_it_in_its_toolbar(browser, jupyter, page):
    page.close()
    page.path = "notebooks/lesson.ipynb"
    seven = Page(browser, jupyter, page.path).open()
    tell(jupyter, {page.kernel: session()})
    seven.says("GPU · resting · 1.2/4 GiB")
    seven.run(0, 1)
    tell(jupyter, {page.kernel: waiting(1)})
    seven.mark(1, "waits for the GPU: 1 ahead")
    seven.status.click()
    details = seven.view.get_by_role("dialog", name="Shared GPU")
    details.get_by_role("button", name="Evict").click()
    seven.view.get_by_text("Done: evict.").first.wait_for()
    seven.view.keyboard.press("Escape")
    expect(details).to_have_count(0)
    seven.close()


@pytest.mark.long
def test_a_server_that_says_nothing_of_it_is_asked_nothing(browser, tmp_path):
    option = '--ServerApp.jpserver_extensions={"jgpu.labserver": False}'
    jupyter = Jupyter(tmp_path, option)
    try:
        jupyter.write("lesson.ipynb", "1")
        page = Page(browser, jupyter, "lab/tree/lesson.ipynb").open()
        jupyter.kernel("lesson.ipynb")
        assert page.asked == []
        assert page.view.locator("[class*='jgpu']:visible").count() == 0
        assert page.view.evaluate("jupyterapp.isPluginActivated('@jgpu/lab:plugin')")
        page.close()
    finally:
        jupyter.close()


def open_panel(page):
    page.view.evaluate("void jupyterapp.commands.execute('jgpu:show')")
    page.view.locator("#jgpu-panel").wait_for()
