"""What the device is through with: taken off its lane, measured, counted.

The rule: a late or doubled report changes nothing, for the lease that it names is not in flight any
more; one that cannot be true raises.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from jgpu.sched.reports.measures import Histogram
from jgpu.sched.states import IllegalEvent

if TYPE_CHECKING:
    from jgpu.sched.events import SegmentsFinished
    from jgpu.sched.lanes.lane import InFlight, Lane
    from jgpu.sched.lanes.table import LaneTable
    from jgpu.sched.limits import Limits
    from jgpu.sched.sessions.session import ScheduledSession

__all__ = ["Finishing"]

_NEVER: Final = float("inf")


class Finishing:
    """Counts segments and iterations that finish."""

    def __init__(self, limits: Limits, table: LaneTable) -> None:
        self._limits = limits
        self._table = table
        #: how long iterations took
        self.iterations = Histogram()
        #: device time done, by what it was predicted to take
        self.worked_s = 0.0

    def finish(self, event: SegmentsFinished) -> ScheduledSession | None:
        """Count segments that finished; return their session, None if the lease is unknown."""
        lane = self._table.lanes.get(event.lane)
        if lane is None or not lane.in_flight:
            return None
        flying, count, measured_s = lane.in_flight[0], event.count, event.measured_s
        known = flying.work.id == event.work and flying.epoch == event.epoch
        if not (known and 0 < count <= flying.count and 0 <= measured_s < _NEVER):
            behind = self._behind(lane, event)
            if behind is None:
                return None
            flying = behind
        session, work = flying.session, flying.work
        if flying.epoch == lane.epoch:
            lane.used_s += measured_s
        session.progress.current_s += measured_s
        done, seconds = work.finished, work.seconds
        worked_s = seconds[done] if count == 1 else sum(seconds[done : done + count])
        self.worked_s += worked_s
        work.finished = done + count
        lane.take_off(session, count, worked_s)
        if count == flying.count and flying is lane.in_flight[0]:
            lane.in_flight.popleft()
        else:
            _clear(lane, flying, count)
        if work.finished == len(seconds):
            session.finish_oldest()
            if work.ends_iteration:
                self.end_iteration(session)
        return session

    def end_iteration(self, session: ScheduledSession) -> None:
        """Count an iteration all of which has finished."""
        self.iterations.note(session.progress.end_iteration(self._limits.newest))

    def _behind(self, lane: Lane, event: SegmentsFinished) -> InFlight | None:
        """Return the oldest in flight of the event's session; None if it is about nothing there.

        Other sessions' may be older: a work that lacks memory in its midst waits, and is overtaken.
        """
        left = [
            each
            for each in lane.in_flight
            if each.epoch == event.epoch and each.work.id == event.work
        ]
        if not left:
            return None
        session, flying = left[0].session, sum(each.count for each in left)
        oldest = next(each for each in lane.in_flight if each.session is session)
        if oldest.work.id != event.work:
            raise IllegalEvent(
                f"Session {session.id} is at work {oldest.work.id} in lane {lane.id}, but work "
                f"{event.work} finished."
            )
        if not 0 < event.count <= flying or not 0 <= event.measured_s < _NEVER:
            raise IllegalEvent(
                f"{event.count} segments of work {event.work} finished in {event.measured_s} s, "
                f"but {flying} were in flight."
            )
        return oldest


def _clear(lane: Lane, flying: InFlight, count: int) -> None:
    """Take `count` segments of a work out of what is in flight, from its oldest on."""
    work = flying.work
    while count > flying.count:
        count -= flying.count
        lane.in_flight.remove(flying)
        flying = next(each for each in lane.in_flight if each.work is work)
    flying.count -= count
    if not flying.count:
        lane.in_flight.remove(flying)
