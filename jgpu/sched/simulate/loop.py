"""A client that trains: one job's cells, one after the other, on a simulated device.

It records an iteration (`host_s`), sends it, and waits when it is `ahead` iterations ahead, as a
kernel does that reads its loss every so often. What it will hold is known to be needed before its
first iteration runs, and measured when that has ended. The rule: it never looks at the scheduler.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from jgpu.sched import events
from jgpu.sched.simulate.results import SimulatedCell

if TYPE_CHECKING:
    from jgpu.sched.simulate.clock import Clock
    from jgpu.sched.simulate.device import Sent, SimulatedDevice
    from jgpu.sched.simulate.jobs import Cell, SimulatedJob
    from jgpu.sched.simulate.results import Log

__all__ = ["LoopPace", "TrainingLoop"]


@dataclass(frozen=True, slots=True)
class LoopPace:
    """How finely work is cut and how soon a session counts as resting."""

    #: longest segment; a program is cut into equal ones
    segment_s: float = 0.0005
    #: seconds without work after which a session's place in its lane may go to others
    idle_s: float = 0.5


class TrainingLoop:
    """One job's client."""

    def __init__(
        self,
        clock: Clock,
        device: SimulatedDevice,
        session: int,
        job: SimulatedJob,
        log: Log,
        pace: LoopPace,
    ) -> None:
        self._clock = clock
        self._device = device
        self._session = session
        self._job = job
        self._log = log
        self._pace = pace
        self._cells = iter(job.cells)
        self._cell: Cell | None = None
        self._seconds: tuple[float, ...] = ()
        self._began_s = 0.0
        #: when the first work of this cell began on the device
        self._first_s: float | None = None
        #: iterations of this cell sent, and ended
        self._sent = 0
        self._ended = 0
        #: works of the oldest unfinished iteration that have ended
        self._parts = 0
        self._blocked = False
        #: bytes that the first iteration is known to need; 0 once its memory was measured
        memory = job.memory
        self._claim = memory.resident + memory.kept + memory.transient
        #: whether the client has come and gone
        self.over = False
        #: counts what it does, so that a timer knows whether the session rested since
        self._steps = 0
        clock.at(job.arrival_s, self._arrive)

    def _arrive(self) -> None:
        job = self._job
        opened = events.SessionOpened(self._session, job.user, job.weight, job.priority)
        self._device.tell(opened)
        self._clock.after(job.startup_s, self._next_cell)

    def _next_cell(self) -> None:
        self._cell = next(self._cells, None)
        if self._cell is None:
            self.over = True
            self._log.job_ended(self._session, self._clock.now)
            self._device.close(self._session)
            return
        self._rest_for(self._cell.think_s)
        self._clock.after(self._cell.think_s, self._begin)

    def _rest_for(self, seconds: float) -> None:
        """Have the core told that the session rests, where it does nothing for that long."""
        if seconds > self._pace.idle_s:
            self._clock.after(self._pace.idle_s, self._rests, self._steps)

    def _rests(self, steps: int) -> None:
        if steps == self._steps and self._sent == self._ended:
            self._device.tell(events.SessionIdle(self._session))

    def _begin(self) -> None:
        cell = self._cell
        assert cell is not None
        part_s = cell.iteration_s / cell.programs
        segments = max(1, round(part_s / self._pace.segment_s))
        self._seconds = (part_s / segments,) * segments
        self._sent = self._ended = self._parts = 0
        self._blocked = False
        self._began_s, self._first_s = self._clock.now, None
        self._steps += 1
        self._device.tell(events.CellStarted(self._session))
        if cell.told:
            told = events.LoopTold(self._session, cell.iterations, cell.iteration_s)
            self._device.tell(told)
        self._clock.after(cell.host_s, self._send)

    def _send(self) -> None:
        cell = self._cell
        assert cell is not None
        self._sent += 1
        self._steps += 1
        for part in range(1, cell.programs + 1):
            self._device.send(
                self._session,
                self._seconds,
                ends=part == cell.programs,
                load=self._job.load,
                done=self._done,
                live=(self._claim,) * len(self._seconds),
                leaves=self._job.memory if self._claim and part == cell.programs else None,
            )
        if self._claim or self._sent - self._ended >= cell.ahead:
            self._blocked = True
        else:
            self._go_on()

    def _go_on(self) -> None:
        cell = self._cell
        assert cell is not None
        if self._sent < cell.iterations:
            self._rest_for(cell.host_s)
            self._clock.after(cell.host_s, self._send)

    def _done(self, work: Sent) -> None:
        cell = self._cell
        assert cell is not None
        assert work.began_s is not None
        self._log.ran(self._session, work.began_s)
        if self._first_s is None:
            self._first_s = work.began_s
        self._parts += 1
        if self._parts < cell.programs:
            return
        self._parts = 0
        self._ended += 1
        self._claim = 0
        if self._ended == cell.iterations:
            self._end_cell(cell)
        elif self._blocked:
            self._blocked = False
            self._go_on()

    def _end_cell(self, cell: Cell) -> None:
        self._steps += 1
        self._device.tell(events.CellEnded(self._session))
        now = self._clock.now
        self._log.cell_ended(
            SimulatedCell(self._session, self._began_s, now, cell.service_s, self._first_s)
        )
        self._next_cell()
