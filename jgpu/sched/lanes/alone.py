"""Whoever has nobody beside them: where their next work would start, and what it was if it ran.

Brief work of such a session is run before the core hears of it, for there is nothing to decide
about it. Told of in two events it would be queued, weighed, given its turn, started and taken off
again; where its session has the turn already, what is left of all that is told in one (`WorkRan`).

The rule: `ran` leaves what a `WorkArrived` would have left and a `SegmentsFinished` behind it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from jgpu.sched.states import IllegalEvent, SessionState

if TYPE_CHECKING:
    from jgpu.sched.events import WorkRan
    from jgpu.sched.finishing import Finishing
    from jgpu.sched.journal import Journal
    from jgpu.sched.lanes.room import RoomKeeper
    from jgpu.sched.lanes.table import LaneTable
    from jgpu.sched.ledger import FairShare
    from jgpu.sched.limits import Limits
    from jgpu.sched.sessions.session import ScheduledSession
    from jgpu.sched.spilling import SpillPlanner
    from jgpu.sched.turns import Turns

__all__ = ["LoneRuns"]

_CLOSED: Final = SessionState.CLOSED
_NEVER: Final = float("inf")


class LoneRuns:
    """Says what would start at once, and counts what ran so."""

    def __init__(
        self,
        limits: Limits,
        journal: Journal,
        ledger: FairShare,
        table: LaneTable,
        room: RoomKeeper,
        turns: Turns,
        finishing: Finishing,
        spilling: SpillPlanner,
    ) -> None:
        self._limits = limits
        self._journal = journal
        self._ledger = ledger
        self._table = table
        self._room = room
        self._turns = turns
        self._finishing = finishing
        self._spilling = spilling

    def would_start(self, session: int, claim: int) -> int | None:
        """Return the lane in which a work that arrived now would start at once, if that is certain.

        It is where nobody has anything to run, and a session that has its lane and its memory there
        brings a work that needs no more than the lane has (`claim`). Whoever runs it before it is
        told of is not contradicted, if the very next event is its arrival; what the session `ran`
        before it, and is told of first, changes nothing of this.
        """
        table, spilling = self._table, self._spilling
        found = table.sessions.get(session)
        if found is None or found.state is _CLOSED:
            return None
        lane = found.lane
        if lane is None or found.queue or found.in_flight or claim > lane.capacity:
            return None
        if spilling.leaving or spilling.stranded or self._ledger.throttles:
            return None
        if self._turns.policy.plans_lanes or not table.is_open_to(found, lane):
            return None
        return lane.id

    def has_turn(self, session: int) -> bool:
        """Whether a session has the turn in its lane, so that what `would_start` may be `ran`."""
        found = self._table.sessions.get(session)
        return found is not None and found.lane is not None and found.lane.holder is found

    def ran(self, session: ScheduledSession, event: WorkRan) -> None:
        """Count a work that began at this moment, alone, and was over before it is told of."""
        lane, limits, journal = session.lane, self._limits, self._journal
        certain = self.would_start(session.id, event.live_bytes) == event.lane
        if lane is None or not certain or lane.holder is not session:
            raise IllegalEvent(f"Work {event.work} cannot have run in lane {event.lane} alone.")
        predicted_s, elapsed_s, measured_s = event.predicted_s, event.elapsed_s, event.measured_s
        could_be = 0 <= predicted_s < _NEVER and 0 <= elapsed_s < _NEVER and event.live_bytes >= 0
        if not (could_be and 0 <= measured_s < _NEVER):
            raise IllegalEvent(f"Work {event.work} cannot have run so: {event}.")
        user, ledger = session.user, self._ledger
        seconds = predicted_s
        if predicted_s <= limits.least_segment_s:
            seconds = limits.least_segment_s if predicted_s else limits.nominal_segment_s
        # It comes, and starts.
        session.waiting.began = journal.now
        ledger.enter(session)
        self._turns.waits.note(0.0)
        session.iteration_open = not event.ends_iteration
        # It is over.
        journal.now += elapsed_s
        ledger.charge_alone(session, journal.now)
        # As in `Lane.take_off`, to the bit: what it was predicted to take came and went.
        left_s = user.in_flight_s + seconds - seconds
        user.in_flight_s = left_s if left_s > 0.0 else 0.0
        lane.used_s += measured_s
        session.progress.current_s += measured_s
        self._finishing.worked_s += seconds
        if event.ends_iteration:
            self._finishing.end_iteration(session)
        # While it ran its lane had what it claimed; what is claimed from here on is asked once.
        room = session.room
        left = event.live_bytes if session.iteration_open else 0
        if not event.live_bytes == room.claim == left:
            room.claim = left
            self._room.refit(session)
        ledger.leave(session)
        self._table.changed = True
