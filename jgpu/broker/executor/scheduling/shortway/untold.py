"""What went a short way and the core has not heard of: a few runs, and uploads before them.

The core hears of it while the pump would wait anyway, in order, each as of what arrived when it
began. Uploads that came together are told of as one work, as those are that ride behind another
(`riding`).

Where the session has the turn already and nothing is new of its memory, the core has nothing to
decide about what ran (`WorkRan`): it charges it and counts it, and what it says of the next work of
the same session (`Core.would_start`) is the same before as behind that. Only then may more follow
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
#: what may be untold together, and for how many seconds, where there is no time to tell of it
_MOST: Final = 8
_LONGEST_S: Final = 0.002


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
        #: what was followed by more, oldest first, and when each began; of `_session`
        self._followed: list[tuple[events.WorkRan, float]] = []
        #: what ran last: its session, its number for the core, what it was predicted to take, the
        #: bytes that it claims, whether it ended an iteration, when it began, and what it took
        self._session: ExecutorSession | None = None
        self._work, self._claim, self._ends = 0, 0, False
        self._predicted_s = self._began = self._took_s = 0.0
        #: uploads told of with it; below 0 where it is a run
        self._riders = -1
        #: it is told of already, or among what was followed
        self._is_followed = True
        #: others have been heard since
        self._others_heard = False

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
        self._is_followed = self._others_heard = False
        self._teller.untold = self._tell

    def ride(self, took_s: float) -> None:
        """An upload is over, and is told of with those before it."""
        next(self._teller.keys)
        self._took_s += took_s
        self._riders += 1

    def others_heard(self) -> bool:
        """Others are heard before what comes next; returns whether this may stay untold till then.

        That is so of what ran the short way, for a while; what ran as a work is told of at its end.
        """
        self._others_heard = True
        if self._session is None:
            return False
        began = self._followed[0][1] if self._followed else self._began
        return self._clock() - began <= _LONGEST_S

    def others_first(self, session: "ExecutorSession") -> bool:
        """Whether what ran last is a run of this session, and others were not heard since."""
        return self._session is session and self._riders < 0 and not self._others_heard

    @property
    def takes_riders(self) -> bool:
        """Whether what ran last is an upload, and the next was sent together with it."""
        return not (self._is_followed or self._others_heard or self._riders < 0)

    def make_way(
        self, session: "ExecutorSession", *, uploads: bool = False, waited_for: bool = False
    ) -> bool:
        """Make way for what comes next of a session that has nothing in hand, if it may go.

        Behind what came with it, that is an upload behind a few others, or a run whose client waits
        for it, and so sends no more of them now.
        """
        teller = self._teller
        if teller.untold is None:
            return True
        if self._session is None:  # a work
            return False
        if session is not self._session:
            teller.catch_up()
            return True
        if not self._others_heard:
            if uploads:
                return 0 <= self._riders < _RIDERS and not self._is_followed
            if self._riders < 0 or not waited_for:
                return False
        if not self._is_followed:
            self._follow(session)
        return True

    def _follow(self, session: "ExecutorSession") -> None:
        """Have more follow what ran last; it is told of first where something may be decided."""
        measured = self._measured(session)
        is_certain = measured is None and self._core.has_turn(session.number)
        if is_certain and len(self._followed) < _MOST:
            self._followed.append((self._as_ran(session), self._began))
            self._is_followed = True
            return
        self._teller.untold = None
        self._tell_of(measured)

    def _as_ran(self, session: "ExecutorSession") -> events.WorkRan:
        return events.WorkRan(
            session.number, self._work, self._predicted_s, self._claim, self._ends,
            session.standing.lane, session.rest.since - self._began, self._took_s,
        )  # fmt: skip

    def _tell(self) -> None:
        """The core hears of it."""
        session, measured = self._session, None
        assert session is not None
        # As where a work ends the usual way: what came meanwhile is counted with this.
        is_over = self._ends or not session.queue.outstanding
        if is_over and not self._is_followed and not session.life.has_ended:
            measured = self._measured(session)
        self._tell_of(measured)

    def _tell_of(self, measured: events.MemoryMeasured | None) -> None:
        session, followed, teller = self._session, self._followed, self._teller
        assert session is not None
        is_told, self._is_followed, self._session = self._is_followed, True, None
        self._followed = []
        for ran, began in followed:
            teller.tell_ran(ran, began)
        if is_told:
            return
        if measured is None and self._core.has_turn(session.number):
            teller.tell_ran(self._as_ran(session), self._began)
            return
        # There may be something to decide: it comes, and it is over.
        work, lane = self._work, session.standing.lane
        segment = (events.Segment(self._predicted_s, self._claim),)
        arrival = events.WorkArrived(session.number, work, segment, self._ends)
        epoch = teller.tell_of(arrival, self._began, lane)
        if measured is not None:
            teller.tell(measured)
        teller.tell(events.SegmentsFinished(lane, epoch, work, 1, self._took_s))
