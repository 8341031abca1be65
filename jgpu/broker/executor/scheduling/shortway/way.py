"""Conditions of both fast paths, and the bookkeeping after them."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from jgpu.broker.executor.memory.movement import MovementState
from jgpu.broker.executor.memory.table import MAX_BUFFERS
from jgpu.broker.executor.scheduling.shortway.untold import Untold
from jgpu.broker.executor.works.course import Passed
from jgpu.sched import Core, events

if TYPE_CHECKING:
    from jgpu.broker.executor.devices.base import Device, Port
    from jgpu.broker.executor.programs import Buffer, Definition
    from jgpu.broker.executor.scheduling.feed import LaneFeed
    from jgpu.broker.executor.scheduling.forecast import Forecast
    from jgpu.broker.executor.scheduling.telling import CoreTeller
    from jgpu.broker.executor.session import ExecutorSession

__all__ = ["ShortWay"]

_STILL: Final = MovementState.STILL  # plain: looking into an enumeration takes time


class ShortWay:
    """Decides whether a session's next work may take a fast path, and records it afterwards."""

    def __init__(
        self,
        device: "Device",
        core: Core,
        clock: Callable[[], float],
        teller: "CoreTeller",
        feed: "LaneFeed",
        forecasts: "dict[int, Forecast]",
        measured: "Callable[[ExecutorSession], events.MemoryMeasured | None]",
    ) -> None:
        """`forecasts` are the driver's; `measured` returns changes of a session's memory."""
        self._is_open = not feed.is_traced  # a trace has works alone
        self.device = device
        self.clock = clock
        self.teller = teller
        self.feed = feed
        self._trials = feed.trials
        self.forecasts = forecasts
        self.untold = Untold(core, clock, teller, measured)
        self._core = core

    def is_clear(self, session: "ExecutorSession", work: int) -> bool:
        """Whether nothing is in hand, on its way or tried, and this is the work that is due."""
        queue, table = session.queue, session.table
        return self._is_open and not (
            queue.outstanding
            or queue.notes
            or queue.cancel_requests
            or work != queue.next_number
            or table.resident_away
            or table.kept_away
            or table.aside
            or session.movement.state is not _STILL
            or session.life.is_over
            or len(table.buffers) > MAX_BUFFERS
            or session.faults is not None
            or self.device.allocate is not None
            or self.feed.starts
            or not self._trials.quiet
        )

    def port(
        self, session: "ExecutorSession", known_s: float, transient: int, claim: int
    ) -> "Port | None":
        """The port to do it by, if the device would, and the core would start it at once.

        `transient`: bytes that it makes; `claim`: bytes that it needs of its lane at most.
        """
        lane = session.standing.lane
        port = self.device.port_at_once(lane, known_s)
        if port is None or not (transient <= 0 or session.account.fits(session, transient)):
            return None
        return port if self._core.would_start(session.number, claim) == lane else None

    def put_down(
        self,
        session: "ExecutorSession",
        passed: Passed,
        first: int,
        took_s: float,
        definition: "Definition | None" = None,
        buffers: "Sequence[Buffer]" = (),
    ) -> None:
        """Record in the session what a work that was offered, launched and finished records.

        `first` is the first buffer that it made; a run has a definition, and `buffers` it was of.
        """
        session.queue.next_number = passed.number + 1
        cells = session.cells
        if cells.first_buffer is None:
            cells.note_made(first)
        cells.times.count(passed.number, took_s)
        session.course.passed(passed, definition, buffers)
        session.progress.note(passed.number, definition.ops if definition is not None else 0)
        rest = session.rest
        rest.is_told, rest.asked, rest.since = False, None, self.clock()
        session.wait.users = ()
