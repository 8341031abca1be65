"""What a page gets and keeps while a notebook trains for long.

By the browser's own account (the DevTools protocol). Does not cover how much comes to a page that
is seen (`jgpu bench lab`).
"""

import time
from datetime import timedelta

import pytest
from jupyter_pages import Page, needs_chromium, until
from results import write_result
from shared_jupyter import FIRST, says, shared_jupyter

pytestmark = [pytest.mark.long, pytest.mark.e2e, needs_chromium, pytest.mark.timeout(1000)]

#: Iterations until the kernel is interrupted.
TRAINS = """
while True:
    weight = torch.rand(64, 64, device='cuda', requires_grad=True)
    (weight @ weight).sum().backward()
    weight.grad.sum().item()
"""
HIDDEN_S = 60.0
TRAINING = timedelta(minutes=10)
#: A page may keep this much more after ten minutes than after one: JupyterLab's own buffers.
MOST_BYTES = 3_000_000
MOST_NODES = 500


@pytest.fixture
def trains(browser, tmp_path):
    """A page with the panel and the list of what runs, on a notebook that trains."""
    with shared_jupyter(tmp_path) as jupyter:
        jupyter.write("lesson.ipynb", FIRST, TRAINS)
        page = Page(browser, jupyter, "lab/tree/lesson.ipynb?reset")
        page.account = Account(page)
        page.open()
        kernel = jupyter.kernel("lesson.ipynb")
        page.run(0)
        says(page, "GPU · resting")
        page.view.evaluate("void jupyterapp.commands.execute('jgpu:show')")
        page.view.get_by_role("tab", name="Running Terminals and Kernels").click()
        page.view.locator(".jgpu-Running").wait_for()
        page.run(1)
        says(page, "GPU · running")
        yield page
        jupyter.ask(f"api/kernels/{kernel}/interrupt", {}, "POST")
        says(page, "GPU · resting")
        page.close()


class Account:
    """What a page's browser counts of it."""

    def __init__(self, page):
        self._page = page
        self._line = page.view.context.new_cdp_session(page.view)
        self._ours = set()
        #: characters to and from jgpu's part of the server
        self.traffic = 0
        self._line.on("Network.webSocketCreated", lambda event: self._note(event, event["url"]))
        self._line.on(
            "Network.requestWillBeSent", lambda event: self._note(event, event["request"]["url"])
        )
        for name in ("Received", "Sent"):
            self._line.on(f"Network.webSocketFrame{name}", self._frame)
        self._line.on("Network.dataReceived", self._data)
        self._line.send("Network.enable")

    def _note(self, event, url):
        if "/jgpu/" in url and "labextensions" not in url:
            self._ours.add(event["requestId"])
            self.traffic += len(url)

    def _frame(self, event):
        if event["requestId"] in self._ours:
            self.traffic += len(event["response"]["payloadData"])

    def _data(self, event):
        if event["requestId"] in self._ours:
            self.traffic += event["dataLength"]

    def memory(self):
        """What is still reached after its garbage is collected: bytes, and nodes."""
        self._line.send("HeapProfiler.collectGarbage")
        used = self._line.send("Runtime.getHeapUsage")["usedSize"]
        return int(used), self._line.send("Memory.getDOMCounters")["nodes"]


def watched(page, seconds):
    """What came and went in so many seconds."""
    before = page.account.traffic
    page.view.wait_for_timeout(1000 * seconds)
    return page.account.traffic - before


def test_a_hidden_page_neither_sends_nor_gets_a_byte_in_a_minute(trains):
    page = trains
    seen = watched(page, 6.0)
    assert seen > 0
    page.hide()
    until(lambda: not page.listens, "a closed socket")
    hidden = watched(page, HIDDEN_S)
    page.hide(hidden=False)
    again = watched(page, 6.0)
    write_result(
        "lab-hidden-page",
        {
            "characters in 6 s before": seen,
            f"characters in {HIDDEN_S:.0f} s hidden": hidden,
            "characters in 6 s after": again,
        },
    )
    assert hidden == 0
    assert again > 0


def test_a_page_keeps_no_more_after_ten_minutes_of_training_than_after_one(trains):
    page = trains
    began, found = time.monotonic(), []
    for minute in range(1, TRAINING.seconds // 60 + 1):
        page.view.wait_for_timeout(1000 * (began + 60 * minute - time.monotonic()))
        nbytes, nodes = page.account.memory()
        found.append({"minute": minute, "bytes": nbytes, "nodes": nodes})
    first, last = found[0], found[-1]
    grown = {name: last[name] - first[name] for name in ("bytes", "nodes")}
    write_result(
        "lab-page-memory",
        {
            "grown": grown,
            "most": {"bytes": MOST_BYTES, "nodes": MOST_NODES},
            "characters told": page.account.traffic,
            "minutes": found,
        },
    )
    says(page, "GPU · running")
    assert grown["bytes"] < MOST_BYTES
    assert grown["nodes"] < MOST_NODES
