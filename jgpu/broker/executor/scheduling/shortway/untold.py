"""What went a short way and the core has not heard of: a few uploads that came together, a run.

The core hears of it afterwards, in order, as of what arrived when it began. Uploads that came
together are told of as one work, as those are that ride behind another (`riding`).

Where the session has the turn already and nothing is new of its memory, the core has nothing to
decide about what ran (`WorkRan`): it charges it and counts it, and what it says of the next work of
the same session (`Core.would_start`) is the same before as behind that. Only then may a run follow
what is untold; else that is told first.

Invariant: what is untold is of one session; the core hears of all of it before anything else.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from jgpu.sched import Core, events

if TYPE_CHECKING:
    from jgpu.broker.executor.scheduling.telling import CoreTeller
    from jgpu.broker.executor.session import ExecutorSession

__all__ = ["Untold"]

#: uploads that may be told of with the first of them, as many as may ride
_RIDERS: Final = 4


class Untold:
    """Of one session at a time."""

    def __init__(
        self,
        core: Core,
        clock: Callable[[], float],
        teller: "CoreTeller",
        measured: "Callable[[ExecutorSession], events.MemoryMeasured | None]",
    ) -> None:
        self._core = core
        self._clock = clock
        self._teller = teller
        self._measured = measured
        #: uploads that a run has followed, and when they began
        self._sealed: tuple[events.WorkRan, float] | None = None
        #: what ran last: its session, its number for the core, what it was predicted to take, the
        #: bytes that it claims, whether it ended an iteration, when it began, and what it took
        self._session: ExecutorSession | None = None
        self._work, self._claim, self._ends = 0, 0, False
        self._predicted_s = self._began = self._took_s = 0.0
        #: uploads told of with it; below 0 where it is a run
        self._riders = -1

    def note(
        self,
        session: "ExecutorSession",
        predicted_s: float,
        claim: int,
        began: float,
        took_s: float,
        *,
        ends: bool,
        riders: int = -1,
    ) -> None:
        """Something is over; `claim` as it would have been told, `riders` 0 for an upload."""
        self._session, self._work = session, next(self._teller.keys)
        self._predicted_s, self._claim, self._ends = predicted_s, claim, ends
        self._began, self._took_s, self._riders = began, took_s, riders
        self._teller.untold = self._tell

    def ride(self, took_s: float) -> None:
        """An upload is over, and is told of with those before it."""
        next(self._teller.keys)
        self._took_s += took_s
        self._riders += 1

    @property
    def is_of_uploads(self) -> bool:
        """Whether what ran last is an upload, with which others may be told of."""
        return self._session is not None and self._riders >= 0

    def takes_upload(self, session: "ExecutorSession") -> bool:
        """Whether an upload of a session may go the short way, as far as this is concerned."""
        if self._teller.untold is None:
            return True
        return session is self._session and 0 <= self._riders < _RIDERS

    def make_way(self, session: "ExecutorSession", *, waited_for: bool) -> bool:
        """Make way for a run of a session that has nothing in hand; returns whether it may go.

        Behind uploads one may whose client waits for it, and so sends no more of them now.
        """
        if self._teller.untold is None:
            return True
        if not waited_for or session is not self._session or self._riders < 0:
            return False
        if (measured := self._measured(session)) is None and self._core.has_turn(session.number):
            self._sealed, self._session = (self._as_ran(session), self._began), None
        else:
            self._tell_in_full(session, measured)
        return True

    def _as_ran(self, session: "ExecutorSession") -> events.WorkRan:
        return events.WorkRan(
            session.number, self._work, self._predicted_s, self._claim, self._ends,
            session.standing.lane, self._clock() - self._began, self._took_s,
        )  # fmt: skip

    def _tell(self) -> None:
        """The core hears of it."""
        if self._sealed is not None:
            (ran, began), self._sealed = self._sealed, None
            self._teller.tell_ran(ran, began)
        if (session := self._session) is None:
            return
        measured = None
        # As where a work ends the usual way: what came meanwhile is counted with this.
        if (self._ends or not session.queue.outstanding) and not session.life.has_ended:
            measured = self._measured(session)
        if measured is None and self._core.has_turn(session.number):
            self._session = None
            self._teller.tell_ran(self._as_ran(session), self._began)
        else:
            self._tell_in_full(session, measured)

    def _tell_in_full(
        self, session: "ExecutorSession", measured: events.MemoryMeasured | None
    ) -> None:
        """There may be something to decide: it comes, and it is over."""
        teller, work, lane = self._teller, self._work, session.standing.lane
        self._session = teller.untold = None
        segment = (events.Segment(self._predicted_s, self._claim),)
        arrival = events.WorkArrived(session.number, work, segment, self._ends)
        epoch = teller.tell_of(arrival, self._began, lane)
        if measured is not None:
            teller.tell(measured)
        teller.tell(events.SegmentsFinished(lane, epoch, work, 1, self._took_s))
