"""Cases as processes: so many at once, each with its time, all of them with a budget.

What is left when the time of all is over is told as not run. A case that is over leaves nothing
behind: with its process go those that it started, whatever session they are in.
"""

import contextlib
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

from jgpu.gpucheck.catalogue import GpuCase
from jgpu.gpucheck.outcome import PROCESS, CaseEnd, GpuOutcome, outcome_of

__all__ = ["Runner"]

_POLL_S: Final = 0.05
#: how long what is ending may take
_GRACE_S: Final = 10.0
_OUT_OF_TIME: Final = "out of time"
#: in the environment of whatever a case starts
_MARK: Final = "JGPU_GPU_CASE"


@dataclass(slots=True)
class _Running:
    """A case's process, and what it says."""

    case: GpuCase
    mark: str
    process: subprocess.Popen[bytes]
    said: Any
    complained: Any
    began_s: float
    until_s: float


class Runner:
    """Runs cases side by side; those that are timed alone, behind the others."""

    def __init__(
        self,
        command_of: Callable[[GpuCase], Sequence[str]],
        environ: Mapping[str, str],
        *,
        budget_s: float,
        at_once: int = 4,
        patience: float = 1.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`command_of` a case is what is started for it; `patience` multiplies its time."""
        self._patience = patience
        self._command_of = command_of
        self._environ = dict(environ)
        self._at_once = at_once
        self._clock = clock
        self._end_s = clock() + budget_s
        self._running: list[_Running] = []

    def run(self, cases: Sequence[GpuCase]) -> Iterator[GpuOutcome]:
        """What became of each, in the order in which they end. Closing it ends all that runs."""
        waiting = [case for case in cases if not case.alone]
        alone = [case for case in cases if case.alone]
        try:
            while waiting or alone or self._running:
                if self._clock() >= self._end_s:
                    yield from self._stop([*waiting, *alone])
                    return
                while waiting and len(self._running) < self._at_once:
                    self._start(waiting.pop(0))
                if alone and not self._running:
                    self._start(alone.pop(0))
                over = self._over()
                yield from over
                if not over:
                    time.sleep(_POLL_S)
        finally:
            for running in self._running:
                _end(running)

    def _start(self, case: GpuCase) -> None:
        said, complained = tempfile.TemporaryFile(), tempfile.TemporaryFile()  # noqa: SIM115
        now, mark = self._clock(), uuid4().hex
        process = subprocess.Popen(
            self._command_of(case),
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=complained,
            env=self._environ | {_MARK: mark},
            start_new_session=True,
        )
        until_s = min(now + self._patience * case.limit_s, self._end_s)
        self._running.append(_Running(case, mark, process, said, complained, now, until_s))

    def _over(self) -> list[GpuOutcome]:
        """Those that ended by now, or had to."""
        found = []
        for running in list(self._running):
            ended = running.process.poll() is not None
            if ended or self._clock() >= running.until_s:
                self._running.remove(running)
                found.append(self._told(running, ended=ended))
        return found

    def _told(self, running: _Running, *, ended: bool) -> GpuOutcome:
        status = _end(running)
        seconds = self._clock() - running.began_s
        said, complained = map(_text, (running.said, running.complained))
        found = outcome_of(running.case.name, status, said.splitlines(), complained, seconds)
        if ended:
            return found
        faults = {name: text for name, text in found.faults.items() if name != PROCESS}
        if running.until_s >= self._end_s and not faults:
            text = f"{_OUT_OF_TIME}, after {seconds:.0f} s"
            return replace(found, end=CaseEnd.NOT_RUN, text=text, faults={})
        faults[PROCESS] = f"It was not over after {seconds:.0f} s, and was ended."
        text = next(f"{name}: {fault}" for name, fault in faults.items())
        return replace(found, end=CaseEnd.FAILED, text=text, faults=faults)

    def _stop(self, left: Sequence[GpuCase]) -> Iterator[GpuOutcome]:
        for running in list(self._running):
            self._running.remove(running)
            yield self._told(running, ended=running.process.poll() is not None)
        for case in left:
            yield GpuOutcome(case.name, CaseEnd.NOT_RUN, _OUT_OF_TIME)


def _text(file: Any) -> str:
    with file:
        file.seek(0)
        return bytes(file.read()).decode(errors="replace")


def _end(running: _Running) -> int:
    """End a case's process and all that it started; its exit status, of before where it was over.

    What it started may lead sessions of its own and have lost its parent: a broker does.
    """
    process = running.process
    if process.poll() is None:
        process.kill()
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    status = process.wait(_GRACE_S)
    deadline = time.monotonic() + _GRACE_S
    while (left := list(_marked(running.mark))) and time.monotonic() < deadline:
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(_POLL_S)
    return status


def _marked(mark: str) -> Iterator[int]:
    """Processes with this mark in their environment that have not ended."""
    words = f"{_MARK}={mark}".encode()
    for place in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):  # somebody else's, or over
            if words in place.read_bytes().split(b"\0"):
                yield int(place.parent.name)
