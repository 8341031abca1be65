"""How soon JupyterLab's page itself shows what the broker knows, by a real browser.

A notebook's cells compete with a program of long ops for one lane; then its kernel ends in three
ways. Each time is from the broker's telling until the page's document has changed.
"""

import json
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from jgpu.errors import BrokerUnreachable
from jgpu.wire.address import Address
from jgpu.wire.reports.report import Report
from jgpu.wire.reports.watching import watch

__all__ = ["CHROMIUM", "Shown", "measure"]

CHROMIUM: Final = Path("/usr/bin/chromium")
NAME: Final = "lesson.ipynb"
_DEADLINE_S: Final = 120.0
_POLL_S: Final = 0.1
#: One op of seconds after the other: whoever comes has to wait.
_BUSY: Final = """
import torch
matrix = torch.rand(2000, 2000, device='cuda')
while True:
    torch.linalg.svd(matrix)[1][0].item()
"""
_CELL: Final = "import torch\nx = torch.ones(1 << 20, device='cuda')\nx.sum().item()"
_OBSERVER: Final = """() => {
    window.benchSeen = {};
    const look = () => {
        const status = document.querySelector('.jgpu-Status [role=button]');
        const shown = {
            status: status !== null && status.textContent.includes('waiting'),
            cell: document.querySelector('.jp-CodeCell[data-jgpu=waiting]') !== null,
            gone: document.querySelector('[data-jgpu-kernel]') === null
        };
        for (const name of Object.keys(shown)) {
            if (shown[name]) {
                window.benchSeen[name] ??= Date.now() / 1000;
            }
        }
    };
    new MutationObserver(look).observe(document.body, {
        subtree: true, childList: true, attributes: true, characterData: true
    });
}"""


@dataclass
class Shown:
    """Seconds from the broker's telling to the page's showing."""

    cell: list[float] = field(default_factory=list)
    status: list[float] = field(default_factory=list)
    ended: list[float] = field(default_factory=list)


class _Watched:
    """When the broker first told that something is so, by the clock that the browser has too."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._wanted: Callable[[Report], bool] = lambda report: False
        self._told = threading.Event()
        self._at = 0.0
        threading.Thread(target=self._read, daemon=True).start()

    def expect(self, wanted: Callable[[Report], bool]) -> None:
        """Wait for this from now on."""
        self._told.clear()
        self._wanted = wanted

    def told(self) -> float:
        """When it was so."""
        if not self._told.wait(_DEADLINE_S):
            raise TimeoutError("The broker did not tell of what was to come.")
        return self._at

    def _read(self) -> None:
        try:
            for report in watch(self._address):
                if not self._told.is_set() and self._wanted(report):
                    self._at = time.time()
                    self._told.set()
        except BrokerUnreachable:
            return  # the measurement is over


def measure(address: Address, seat: dict[str, str], url: str, token: str, times: int) -> Shown:
    """`seat`: the environment of the program that competes; `url`: of a server with JupyterLab."""
    from playwright.sync_api import sync_playwright

    _ask(f"{url}api/contents/{NAME}", token, "PUT", _notebook())
    shown = Shown()
    with sync_playwright() as tools:
        browser = tools.chromium.launch(executable_path=str(CHROMIUM), args=["--no-sandbox"])
        page = browser.new_page()
        page.set_default_timeout(1000 * _DEADLINE_S)
        page.goto(f"{url}lab/tree/{NAME}?token={token}")
        watched = _Watched(address)
        visit = _Visit(page, url, token, watched)
        visit.begin()
        watched.expect(lambda report: "running" in _states(report, "busy"))
        busy = subprocess.Popen([sys.executable, "-c", _BUSY], env=seat)
        try:
            watched.told()
            for _ in range(times):
                visit.wait(shown)
        finally:
            busy.kill()
            busy.wait()
        visit.end(shown)
        browser.close()
    return shown


class _Visit:
    """A page on the notebook, and its kernel."""

    def __init__(self, page: Any, url: str, token: str, watched: _Watched) -> None:
        self._page, self._url, self._token, self._watched = page, url, token, watched
        self._kernel = ""

    def begin(self) -> None:
        """The kernel has used the GPU, and the page shows it."""
        self._page.wait_for_selector(".jp-Notebook .jp-CodeCell:visible")
        self._page.evaluate("void jupyterapp.commands.execute('jgpu:show')")
        self._use()
        (session,) = _ask(f"{self._url}api/sessions", self._token)
        self._kernel = session["kernel"]["id"]
        self._page.evaluate(_OBSERVER)

    def wait(self, shown: Shown) -> None:
        """A cell waits its turn, and is done."""
        self._rest()
        self._watched.expect(lambda report: "waiting" in _states(report, self._kernel))
        self._page.evaluate("() => { window.benchSeen = {}; }")
        self._run()
        told = self._watched.told()
        self._page.wait_for_function("benchSeen.cell && benchSeen.status")
        seen = self._page.evaluate("benchSeen")
        shown.cell.append(max(0.0, seen["cell"] - told))
        shown.status.append(max(0.0, seen["status"] - told))

    def end(self, shown: Shown) -> None:
        """The kernel is restarted, killed, and shut down."""
        kernel = f"{self._url}api/kernels/{self._kernel}"
        self._end(shown, lambda: _ask(f"{kernel}/restart", self._token, "POST", {}))
        self._use()
        self._end(shown, lambda: _kill(self._kernel))
        self._page.click(".jp-Dialog button.jp-mod-accept")  # JupyterLab says that it died
        self._use()
        self._end(shown, lambda: _ask(kernel, self._token, "DELETE"))

    def _end(self, shown: Shown, act: Callable[[], object]) -> None:
        self._rest()
        self._watched.expect(lambda report: not _states(report, self._kernel))
        self._page.evaluate("() => { window.benchSeen = {}; }")
        act()
        told = self._watched.told()
        self._page.wait_for_function("benchSeen.gone")
        shown.ended.append(max(0.0, self._page.evaluate("benchSeen.gone") - told))

    def _use(self) -> None:
        self._run()
        self._page.wait_for_selector("[data-jgpu-kernel]")

    def _run(self) -> None:
        """Run the cell; a kernel that is just starting would not be asked."""
        deadline = time.monotonic() + _DEADLINE_S
        while [each["execution_state"] for each in self._kernels()] != ["idle"]:
            if time.monotonic() > deadline:
                raise TimeoutError("The kernel did not come to rest.")
            time.sleep(_POLL_S)
        self._page.locator(".jp-Notebook .jp-CodeCell .cm-content").first.click()
        self._page.keyboard.press("Control+Enter")

    def _kernels(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = _ask(f"{self._url}api/kernels", self._token)
        return found

    def _rest(self) -> None:
        self._page.wait_for_selector(".jgpu-Status [data-jgpu-state=idle]")


def _states(report: Report, kernel: str) -> list[str]:
    return [row.state for row in report.sessions if row.kernel_id == kernel]


def _kill(kernel: str) -> None:
    import psutil

    for process in psutil.process_iter(["cmdline"]):
        if any(f"kernel-{kernel}.json" in word for word in process.info["cmdline"] or ()):
            os.kill(process.pid, signal.SIGKILL)
            return
    raise ProcessLookupError(f"no process of kernel {kernel}")


def _notebook() -> dict[str, Any]:
    cell = {"cell_type": "code", "id": "first", "source": _CELL, "metadata": {}, "outputs": []}
    kernelspec = {"name": "python3", "display_name": "Python 3", "language": "python"}
    content = {
        "cells": [cell | {"execution_count": None}],
        "metadata": {"kernelspec": kernelspec},
        "nbformat": 4,
        "nbformat_minor": 5,
    }
    return {"type": "notebook", "format": "json", "content": content}


def _ask(url: str, token: str, method: str = "GET", body: object = None) -> Any:
    request = urllib.request.Request(
        url,
        data=None if body is None else json.dumps(body).encode(),
        headers={"Authorization": f"token {token}", "Content-Type": "application/json"},
        method=method,
    )
    with urllib.request.urlopen(request, timeout=_DEADLINE_S) as answer:
        return json.loads(answer.read() or b"null")
