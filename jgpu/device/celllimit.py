"""An IPython extension that ends cells which compute for too long; waiting for others is free.

    JGPU_CELL_LIMIT=30 ipython kernel --ext=jgpu.device.celllimit

For whoever runs other people's cells and cannot know how busy the device is, as autograders do:
their own limits count the time that a cell waits for its turn. Counted here is how long a cell has
run, less how long it waited for the broker, plus the device time that its notebook used meanwhile.
A cell beyond the limit gets an interrupt, as from a notebook's button, and is told why.

Works before torch is imported, too, and without a shared device it is an ordinary limit.
"""

import os
import signal
import sys
import threading
import time
from typing import Any, Final

from jgpu.errors import JgpuError
from jgpu.wire.address import find
from jgpu.wire.reports.asking import ask_report

__all__ = ["LIMIT", "CellLimit", "load_ipython_extension"]

LIMIT: Final = "JGPU_CELL_LIMIT"
#: between two interrupts of a cell that takes no notice, and the least between two looks
_AGAIN_S: Final = 1.0


def load_ipython_extension(shell: Any) -> None:
    """Limit the cells of this shell to as many seconds as `JGPU_CELL_LIMIT` says."""
    text = os.environ.get(LIMIT, "")
    try:
        limit_s = float(text or 0)
    except ValueError:
        limit_s = -1.0
    if limit_s < 0:
        sys.stderr.write(f"jgpu: {LIMIT} is {text!r}; it has to be a number of seconds.\n")
    if limit_s > 0:
        CellLimit(limit_s).attach(shell)


class CellLimit:
    """The limit of one shell, on its main thread."""

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._began = 0.0
        self._waited = 0.0
        self._device = 0.0
        self._told = False
        self._before: Any = signal.SIG_DFL

    def attach(self, shell: Any) -> None:
        """Look after every cell from now on."""
        shell.events.register("pre_run_cell", self._start)
        shell.events.register("post_run_cell", self._stop)

    def _start(self, _: object) -> None:
        if threading.current_thread() is not threading.main_thread():
            return
        self._began, self._told = time.monotonic(), False
        self._waited, self._device = _waited(), _device_seconds()
        self._before = signal.signal(signal.SIGALRM, self._look)
        signal.setitimer(signal.ITIMER_REAL, self._limit_s)

    def _stop(self, _: object) -> None:
        if threading.current_thread() is threading.main_thread():
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, self._before)

    def _look(self, *_: object) -> None:
        """Interrupt the cell, or look again when it could be beyond its limit at the earliest."""
        ran = time.monotonic() - self._began
        computed = ran - max(_waited() - self._waited, 0.0)
        computed += max(_device_seconds() - self._device, 0.0)
        left = self._limit_s - computed
        signal.setitimer(signal.ITIMER_REAL, max(left, _AGAIN_S))
        if left > 0:
            return
        if not self._told:
            self._told = True
            sys.stderr.write(
                f"jgpu: this cell computed for more than {self._limit_s:g} s ({ran:.0f} s with its "
                "waiting for others, which does not count) and is interrupted.\n"
            )
        signal.raise_signal(signal.SIGINT)


def _session() -> Any:
    """The process's session on the shared device; None as long as there is none."""
    module = sys.modules.get("jgpu.device.current")
    return getattr(module, "session", None)


def _waited() -> float:
    session = _session()
    return 0.0 if session is None else float(session.connection.waited)


def _device_seconds() -> float:
    """What the session has used of the device, as the broker counts it; 0 where that is unknown."""
    session = _session()
    number = None if session is None else session.connection.number
    if number is None:
        return 0.0
    try:
        report = ask_report(find(), 1.0)
    except JgpuError:
        return 0.0
    return sum(each.device_seconds for each in report.sessions if each.id == number)
