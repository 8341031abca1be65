"""Looks at the executor every second, and does what the watchdog says.

Thin: what is seen is put together here, what follows from it is `watchdog`'s.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from jgpu.broker.control.executors.endings import End
from jgpu.broker.control.executors.supervisor import ExecutorState, Supervisor
from jgpu.broker.control.executors.watchdog import (
    EndExecutor,
    GiveUpLane,
    Note,
    Patience,
    Sight,
    Verdict,
    Watchdog,
    at_work,
)
from jgpu.broker.control.registry import Registry, SessionPhase
from jgpu.broker.flightpage import FlightEntry
from jgpu.wire import messages
from jgpu.wire.messages import ReportIs

__all__ = ["Overseer"]

_LOG = logging.getLogger("jgpu.broker")
_INTERVAL_S: Final = 1.0


class Overseer:
    """One supervisor's. `run` is the task."""

    def __init__(
        self,
        patience: Patience,
        supervisor: Supervisor,
        registry: Registry,
        report: Callable[[], ReportIs | None],
    ) -> None:
        """`report()` is what the executor said of itself last."""
        self._patience = patience
        self._supervisor = supervisor
        self._registry = registry
        self._report = report
        #: called when the executor falls silent, or speaks again
        self.on_change: Callable[[], None] = lambda: None
        #: told of a session whose work takes too long and that is ended for it
        self.on_limit: Callable[[int, str], None] = lambda session, text: None
        #: the process that is watched
        self._pid = 0
        self._watchdog = Watchdog(patience)

    @property
    def silence(self) -> str:
        """A sentence about an executor that gives no sign of life; empty where it does."""
        return self._watchdog.silence if self._supervisor.state is ExecutorState.READY else ""

    @property
    def working(self) -> dict[int, FlightEntry]:
        """By lane, what each is at."""
        page = self._supervisor.page
        return at_work(page.entries()) if page is not None else {}

    async def run(self) -> None:
        """Until cancelled."""
        # Sooner where patience is short, so that it is not exceeded by much.
        least = min(self._patience.outlives_s, self._patience.silent_s, self._patience.stopped_s)
        interval_s = min(_INTERVAL_S, max(0.05, least / 4))
        while True:
            await asyncio.sleep(interval_s)
            silence = self.silence
            if self._supervisor.state is ExecutorState.READY:
                self._look()
            if self.silence != silence:
                self.on_change()

    def _look(self) -> None:
        page, pid = self._supervisor.page, self._supervisor.pid
        if page is None or pid is None:
            return
        if pid != self._pid:
            self._pid, self._watchdog = pid, Watchdog(self._patience)
        report, sessions = self._report(), self._registry.sessions.values()
        lanes = report.lanes if report is not None else ()
        sight = Sight(
            now_ns=time.monotonic_ns(),
            pump=page.pump_sign(),
            entries=tuple(page.entries()),
            living=frozenset(s.number for s in sessions if s.state is SessionPhase.ADOPTED),
            retired=frozenset(lane.id for lane in lanes if lane.state == "retired"),
            cut_off=report is not None and report.cut_off,
            stopped=_is_stopped(pid),
            pump_thread=pid,
        )
        for verdict in self._watchdog.look(sight):
            self._carry_out(verdict)
        if self._watchdog.asks:
            self._supervisor.ask()

    def _carry_out(self, verdict: Verdict) -> None:
        if isinstance(verdict, Note):
            _LOG.warning("%s", verdict.text)
        elif isinstance(verdict, GiveUpLane):
            if verdict.text:
                self.on_limit(verdict.session, verdict.text)
                self._registry.end(verdict.session)
            self._supervisor.send(messages.RetireLane(verdict.lane, verdict.session, verdict.text))
        elif isinstance(verdict, EndExecutor):
            sentence = f"The executor process (pid {self._pid}) {verdict.how}."
            self._supervisor.end(End(verdict.how, sentence, verdict.culprit, verdict.suspects))


def _is_stopped(pid: int) -> bool:
    """Whether a process is stopped, by a signal or a debugger."""
    with contextlib.suppress(OSError):
        after_name = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2]
        return after_name.split()[0] in ("T", "t")
    return False
