"""Which session belongs to which lane, and how large the lanes are.

Sessions come in through FindLane, stay while idle (a notebook that reads its loss is idle for a
moment in each iteration), and give their place up when others need the memory. Lanes open, grow,
shrink and close here. What is not covered: who is placed and who must go (`placing`), what a
session holds and needs (`room`), whose turn it is (`jgpu.sched.turns`).

The rule: nobody *begins* an iteration unless the safety condition holds. An iteration that is
under way goes on, for its memory is counted already and only its end gives it back; where what
was measured broke the condition, everybody at a boundary loses their place until it holds again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from jgpu.sched.actions import CloseLane, MoveLane, OpenLane, ResizeLane
from jgpu.sched.lanes.lane import Lane
from jgpu.sched.lanes.memory import committed_bytes
from jgpu.sched.states import LaneState, Residence

if TYPE_CHECKING:
    from jgpu.sched.journal import Journal
    from jgpu.sched.ledger import FairShare
    from jgpu.sched.limits import Limits
    from jgpu.sched.sessions.session import ScheduledSession

__all__ = ["LaneTable"]


class LaneTable:
    """All lanes, and the sessions in them and before them."""

    def __init__(self, limits: Limits, journal: Journal, ledger: FairShare) -> None:
        self._limits = limits
        self._journal = journal
        self._ledger = ledger
        #: every session that is not forgotten, by id; the core adds and removes
        self.sessions: dict[int, ScheduledSession] = {}
        #: every open or closing lane, by id
        self.lanes: dict[int, Lane] = {}
        #: sessions with queued work and no lane, longest waiting first
        self.unplaced: dict[int, ScheduledSession] = {}
        #: lanes the device has at most
        self.configured = 0
        #: lanes there may be, of those; the ones above it are closing
        self.maximum = 0
        #: how many lanes are closing
        self.closing = 0
        #: how many lanes are retired; they do not count among those that there may be
        self.retired = 0
        #: bytes that all share
        self.capacity = 0
        #: sum of P + K over the sessions, what is coming back from the host among it
        self.held = 0
        #: left side of the safety condition
        self.committed = 0
        #: sessions whose next work waits in mid-iteration for room in its lane, longest first
        self.awaiting_growth: dict[int, ScheduledSession] = {}
        #: the unplaced session for whom all others wait at their boundaries
        self.starving: ScheduledSession | None = None
        #: nobody begins an iteration, and nobody is given a lane; `starving` is None then
        self.draining = False
        #: whether something that may let an unplaced session in has happened since the last try
        self.changed = False

    # --- what is asked

    @property
    def overcommitted(self) -> bool:
        """Whether the safety condition is broken, by what was measured or configured."""
        return self.committed > self.capacity

    @property
    def blocked(self) -> bool:
        """Whether nobody may begin an iteration."""
        return self.draining or self.starving is not None or self.committed > self.capacity

    @property
    def may_open(self) -> bool:
        """Whether there may be a lane more, as far as their number goes."""
        return len(self.lanes) - self.retired < self.maximum

    def may_begin(self, lane: Lane) -> bool:
        """Whether members of a lane may begin an iteration."""
        is_open = lane.state is LaneState.OPEN and not self.draining and self.starving is None
        return is_open and self.committed <= self.capacity

    def is_open_to(self, session: ScheduledSession, lane: Lane) -> bool:
        """Whether nothing stands between a member of a lane, which has no work, and its turn."""
        is_open = session.residence is Residence.HERE and lane.state is LaneState.OPEN
        if not is_open or self.draining or self.starving or self.committed > self.capacity:
            return False
        holder = lane.holder
        if self.closing or self.retired or self.unplaced or self.awaiting_growth:
            return False
        if holder is not None and holder is not session and holder.iteration_open:
            return False
        for each in self.lanes.values():  # noqa: SIM110 - asked of each brief work: few calls
            if each.in_flight or each.waiting:
                return False
        return True

    def can_suspend(self, session: ScheduledSession, successor: ScheduledSession) -> bool:
        """Whether a holder in mid-iteration may be put aside for another member of its lane."""
        more = session.room.need - (successor.room.need if successor.room.suspended else 0)
        return more <= 0 or self.committed + more <= self.capacity

    def can_move(self, session: ScheduledSession, lane: Lane) -> bool:
        """Whether a session may change to this lane now, the lane growing if need be."""
        if session.pinned or lane.state is not LaneState.OPEN:
            return False
        if session.residence is not Residence.HERE:
            return False
        more = session.room.need - lane.capacity
        return more <= 0 or self.committed + more <= self.capacity

    def has_room_for(self, session: ScheduledSession) -> bool:
        """Whether what is AWAY of a session may be brought back now."""
        return (
            self.committed + session.memory.spilled <= self.capacity
            and self._journal.now >= session.memory.away_until
        )

    # --- memory

    def lacking(self, session: ScheduledSession) -> int:
        """Return how many bytes less others would have to hold for a session to go on."""
        over = self.committed + session.memory.spilled - self.capacity
        if session.lane is not None:
            return over + max(0, session.room.wants - session.lane.capacity)
        rooms = [lane.capacity for lane in self.lanes.values() if lane.state is LaneState.OPEN]
        if self.may_open:
            rooms.append(0)
        return over + max(0, session.room.need - max(rooms, default=0))

    def suspend(self, session: ScheduledSession) -> None:
        """Keep the memory of an iteration under way while others have the turn."""
        assert session.lane is not None
        session.room.suspended = True
        session.lane.suspended += session.room.need
        self.committed += session.room.need

    def resume(self, session: ScheduledSession) -> None:
        """End a suspension: the session has the turn again, or its iteration has ended."""
        assert session.lane is not None
        session.room.suspended = False
        session.lane.suspended -= session.room.need
        self.committed -= session.room.need
        self.changed = True

    def await_growth(self, session: ScheduledSession) -> None:
        """Count a session among those whose next work waits in mid-iteration for room."""
        session.room.awaits_growth_since = self._journal.now
        self.awaiting_growth[session.id] = session

    def end_wait_for_growth(self, session: ScheduledSession) -> None:
        """Count it among them no longer; it may not have been there."""
        room = session.room
        if room.awaits_growth_since is not None:
            room.awaits_growth_since, room.wants = None, 0
            del self.awaiting_growth[session.id]

    def recount(self) -> None:
        """Add up what the lanes and the sessions hold."""
        self.committed = committed_bytes(self.held, self.lanes.values())

    # --- lanes

    def configure(self, maximum: int, capacity: int) -> None:
        """Set how many lanes there may be and what they share."""
        self.configured, self.capacity = maximum, capacity
        self.plan(maximum)

    def plan(self, lanes: int) -> None:
        """Use so many of the lanes that the device has; what they hold comes together."""
        self.maximum = min(lanes, self.configured)
        self.changed = True
        usable = [each for each in self.lanes.values() if each.state is not LaneState.RETIRED]
        for lane in sorted(usable, key=lambda lane: lane.id)[self.maximum :]:
            if lane.state is LaneState.OPEN:
                lane.become(LaneState.CLOSING)
                self.closing += 1

    def open_lane(self, capacity: int) -> Lane:
        """Make a lane, with nobody in it yet."""
        lane_id = next(number for number in range(len(self.lanes) + 1) if number not in self.lanes)
        lane = self.lanes[lane_id] = Lane(lane_id, capacity)
        self._journal.act(OpenLane(lane_id, capacity, cause=self._journal.cause))
        self.recount()
        return lane

    def resize(self, lane: Lane, capacity: int) -> None:
        """Let a lane hold so much."""
        if lane.capacity != capacity:
            lane.capacity = capacity
            self._journal.act(ResizeLane(lane.id, capacity, cause=self._journal.cause))
            self.recount()

    def _close_if_empty(self, lane: Lane) -> None:
        if not lane.members:
            self.closing -= lane.state is LaneState.CLOSING
            self.retired -= lane.state is LaneState.RETIRED
            lane.become(LaneState.CLOSED)
            del self.lanes[lane.id]
            self._journal.act(CloseLane(lane.id, cause=self._journal.cause))
            self.recount()
            self.changed = True

    # --- members

    def drain(self, *, on: bool) -> None:
        """Let nobody begin an iteration any more, or let them again."""
        self.draining, self.changed, self.starving = on, True, None

    def join(self, session: ScheduledSession, lane: Lane, reason: str) -> None:
        """Let a session that is in no lane belong to this one, where there is room for it."""
        self._journal.note(session.story, f"joins lane {lane.id}", reason)
        waiting = session.waiting
        if waiting.last_lane is not None and waiting.last_lane != lane.id:
            self._journal.act(MoveLane(session.id, lane.id, cause=self._journal.cause))
        session.enter(lane, self._journal.now, self._limits.memory_turn_s)
        self.unplaced.pop(session.id, None)
        lane.members[session.id] = session
        if session.queue:
            lane.await_turn(session, self._journal.now)
            self._ledger.enter(session)

    def move(self, session: ScheduledSession, lane: Lane, reason: str) -> None:
        """Let a session for which `can_move` holds wait in another lane."""
        old = session.lane
        assert old is not None
        self._detach(session, old)
        self.resize(lane, max(lane.capacity, session.room.need))
        self.join(session, lane, reason)
        self._close_if_empty(old)

    def leave(self, session: ScheduledSession, reason: str) -> None:
        """Take a session that is not pinned out of its lane; with work, it looks for another."""
        lane = session.lane
        assert lane is not None
        self._detach(session, lane)
        session.waiting.left_at = self._journal.now
        self._ledger.leave(session)
        self._journal.note(session.story, f"leaves lane {lane.id}", reason)
        if session.queue:
            self.wait_for_lane(session)
        self._close_if_empty(lane)
        self.changed = True

    def wait_for_lane(self, session: ScheduledSession) -> None:
        """Count a session with work and no lane among those who look for one."""
        session.waiting.lane_since = self._journal.now
        self.unplaced[session.id] = session
        self.changed = True

    def forget(self, session: ScheduledSession) -> None:
        """Let go of a session that is closed and has nothing left to run."""
        session.iteration_open = False
        self.end_wait_for_growth(session)
        if session.lane is not None:
            self.leave(session, "closed")
        self._ledger.leave(session)
        self.held -= session.held
        del self.sessions[session.id]
        self.recount()
        self.changed = True

    def _detach(self, session: ScheduledSession, lane: Lane) -> None:
        if session.room.suspended:
            self.resume(session)
        del lane.members[session.id]
        lane.waiting.pop(session.id, None)
        if lane.holder is session:
            lane.holder = None
        session.lane = None

    def validate(self) -> None:
        """Check every invariant of lanes and their memory."""
        assert self.held == sum(each.held for each in self.sessions.values())
        assert self.committed == committed_bytes(self.held, self.lanes.values())
        members = [each for lane in self.lanes.values() for each in lane.members.values()]
        assert len(members) == len({session.id for session in members})
        assert self.awaiting_growth.keys() == {
            number
            for number, session in self.sessions.items()
            if session.room.awaits_growth_since is not None
        }
        assert not self.overcommitted or all(session.pinned for session in members)
        assert self.starving is None or (self.starving.id in self.unplaced and not self.draining)
        for lane_id, lane in self.lanes.items():
            assert lane.id == lane_id
            lane.validate()
        open_lanes = [each for each in self.lanes.values() if each.state is LaneState.OPEN]
        assert len(open_lanes) <= self.maximum
        assert len(open_lanes) + self.closing + self.retired == len(self.lanes)
        for session_id, session in self.unplaced.items():
            assert self.sessions[session_id] is session
            assert session.lane is None
            assert session.queue
