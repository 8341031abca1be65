"""Which session belongs to which lane, and how large the lanes are.

Sessions come in through FindLane, stay while idle (a notebook that reads its loss is idle for a
moment in each iteration), and give their place up when others need the memory. Lanes open, grow,
shrink and close here. What is not covered: whose turn it is (`jgpu.sched.turns`).

The rule: nobody *begins* an iteration unless the safety condition holds. An iteration that is
under way goes on, for its memory is counted already and only its end gives it back; where what
was measured broke the condition, everybody at a boundary loses their place until it holds again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from jgpu.sched.actions import CloseLane, MoveLane, OpenLane, ResizeLane, Restore
from jgpu.sched.lanes.lane import Lane
from jgpu.sched.lanes.memory import committed_bytes, find_lane
from jgpu.sched.states import LaneState, Residence

if TYPE_CHECKING:
    from jgpu.sched.journal import Journal
    from jgpu.sched.lanes.memory import Placement
    from jgpu.sched.ledger import FairShare
    from jgpu.sched.limits import Limits
    from jgpu.sched.sessions import ScheduledSession

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
        self.cramped: dict[int, ScheduledSession] = {}
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
        return self.draining or self.starving is not None or self.overcommitted

    @property
    def needs_sweep(self) -> bool:
        """Whether sessions must give up their places."""
        return self.closing > 0 or self.overcommitted

    @property
    def may_open(self) -> bool:
        """Whether there may be a lane more, as far as their number goes."""
        return len(self.lanes) - self.retired < self.maximum

    def may_begin(self, lane: Lane) -> bool:
        """Whether members of a lane may begin an iteration."""
        return lane.state is LaneState.OPEN and not self.blocked

    def can_suspend(self, session: ScheduledSession, successor: ScheduledSession) -> bool:
        """Whether a holder in mid-iteration may be put aside for another member of its lane."""
        more = session.need - (successor.need if successor.suspended else 0)
        return more <= 0 or self.committed + more <= self.capacity

    def can_move(self, session: ScheduledSession, lane: Lane) -> bool:
        """Whether a session may change to this lane now, the lane growing if need be."""
        if session.pinned or lane.state is not LaneState.OPEN:
            return False
        if not session.ready or session.yields:
            return False
        more = session.need - lane.capacity
        return more <= 0 or self.committed + more <= self.capacity

    def has_room_for(self, session: ScheduledSession) -> bool:
        """Whether what is AWAY of a session may be brought back now."""
        return (
            self.committed + session.spilled <= self.capacity
            and self._journal.now >= session.away_until
        )

    # --- memory

    def lacking(self, session: ScheduledSession) -> int:
        """Return how many bytes less others would have to hold for a session to go on."""
        over = self.committed + session.spilled - self.capacity
        if session.lane is not None:
            return over + max(0, session.wants - session.lane.capacity)
        rooms = [lane.capacity for lane in self.lanes.values() if lane.state is LaneState.OPEN]
        if self.may_open:
            rooms.append(0)
        return over + max(0, session.need - max(rooms, default=0))

    def lower(self, session: ScheduledSession) -> None:
        """Let a session that waits ask for no more than its work is known to need."""
        session.modest = True
        self.refit(session)

    def measure(
        self, session: ScheduledSession, resident: int, kept: int, transient: int, spilled: int
    ) -> None:
        """Take over what was measured; `spilled` while the session is AWAY."""
        self.hold(session, resident, kept)
        if transient != session.transient:
            session.transient, session.modest = transient, False
        if session.residence is Residence.AWAY:
            session.spilled = spilled
            if not spilled:
                session.reside(Residence.HERE)
        self.changed = True
        self.refit(session)

    def hold(self, session: ScheduledSession, resident: int, kept: int) -> None:
        """Count what a session holds on the device from now on."""
        self.held += resident + kept - session.resident - session.kept
        session.resident, session.kept = resident, kept
        session.stale = min(session.stale, kept)
        self._count()

    def restore(self, session: ScheduledSession) -> None:
        """Have what is AWAY of a session brought back, and keep room for it."""
        session.returning = session.spilled
        self.held += session.returning
        session.reside(Residence.RESTORING)
        self._count()
        self._journal.note(session.story, "is restored", f"{session.spilled} bytes")
        self._journal.act(Restore(session.id, cause=self._journal.cause))

    def restored(self, session: ScheduledSession, resident: int, kept: int, spilled: int) -> None:
        """Count what has come back of a session that was RESTORING."""
        self.held -= session.returning
        session.returning, session.spilled = 0, spilled
        session.reside(Residence.AWAY if spilled else Residence.HERE)
        self.hold(session, resident, kept)
        session.here_since = self._journal.now
        self.changed = True
        self.refit(session)

    def refit(self, session: ScheduledSession) -> None:
        """Adapt to what a session needs now: grow its lane, or have it look for another.

        In mid-iteration it cannot leave its lane: its next work waits there for room as long as
        others can make any.
        """
        beside = max(0, self.capacity - session.held - session.spilled + session.returning)
        estimate = 0 if session.modest else session.transient
        need = min(max(estimate, session.claim), beside)
        lane = session.lane
        more = 0 if lane is None else need - lane.capacity
        fits = more <= 0 or self.committed + more <= self.capacity
        if session.pinned and not fits and self._may_wait(session):
            if session.cramped_since is None:
                session.cramped_since = self._journal.now
                self.cramped[session.id] = session
                self._journal.note(session.story, "waits in mid-iteration", f"for {more} bytes")
            session.wants = need
            return
        self._uncramp(session)
        if need == session.need:
            return
        if lane is not None and session.suspended:
            lane.suspended += need - session.need
        session.need = need
        self._count()
        if lane is not None and more > 0:
            if session.pinned or fits:
                self.resize(lane, need)
            else:
                self.leave(session, "needs more than its lane can give")
        self.changed = True

    def _may_wait(self, session: ScheduledSession) -> bool:
        """Whether a work can wait in mid-iteration for room that others may make, in a while."""
        if session.suspended or not session.queue or session.queue[0].started:
            return False
        since, patience_s = session.cramped_since, self._limits.room_patience_s
        if since is not None and self._journal.now - since >= patience_s:
            return False
        return any(
            each is not session and (each.kept > 0 or each.lane not in (None, session.lane))
            for each in self.sessions.values()
        )

    def _uncramp(self, session: ScheduledSession) -> None:
        if session.cramped_since is not None:
            session.cramped_since, session.wants = None, 0
            del self.cramped[session.id]

    def look_at_cramped(self) -> None:
        """Give room in mid-iteration to those who waited for it, where there is some now."""
        for session in list(self.cramped.values()):
            self.refit(session)

    def suspend(self, session: ScheduledSession) -> None:
        """Keep the memory of an iteration under way while others have the turn."""
        assert session.lane is not None
        session.suspended = True
        session.lane.suspended += session.need
        self._count()

    def resume(self, session: ScheduledSession) -> None:
        """End a suspension: the session has the turn again, or its iteration has ended."""
        assert session.lane is not None
        session.suspended = False
        session.lane.suspended -= session.need
        self._count()
        self.changed = True

    def _count(self) -> None:
        self.committed = committed_bytes(self.held, self.lanes.values())

    # --- lanes

    def configure(self, maximum: int, capacity: int) -> None:
        """Set how many lanes there may be and what they share."""
        self.configured, self.capacity = maximum, capacity
        self.plan(maximum)
        for session in self.sessions.values():
            self.refit(session)

    def plan(self, lanes: int) -> None:
        """Use so many of the lanes that the device has; what they hold comes together."""
        self.maximum = min(lanes, self.configured)
        self.changed = True
        usable = [each for each in self.lanes.values() if each.state is not LaneState.RETIRED]
        for lane in sorted(usable, key=lambda lane: lane.id)[self.maximum :]:
            if lane.state is LaneState.OPEN:
                lane.become(LaneState.CLOSING)
                self.closing += 1

    def spread(self) -> None:
        """Let somebody who waits in the fullest lane look for another, for there may be more."""
        if not self.lanes or not self.may_open:
            return
        fullest = max(self.lanes.values(), key=lambda lane: (len(lane.waiting), -lane.id))
        movable = [each for each in fullest.waiting.values() if not each.pinned and each.ready]
        if movable:
            self.leave(movable[-1], "a lane more may be used")

    def open_lane(self, capacity: int) -> Lane:
        """Make a lane, with nobody in it yet."""
        lane_id = next(number for number in range(len(self.lanes) + 1) if number not in self.lanes)
        lane = self.lanes[lane_id] = Lane(lane_id, capacity)
        self._journal.act(OpenLane(lane_id, capacity, cause=self._journal.cause))
        self._count()
        return lane

    def resize(self, lane: Lane, capacity: int) -> None:
        """Let a lane hold so much."""
        if lane.capacity != capacity:
            lane.capacity = capacity
            self._journal.act(ResizeLane(lane.id, capacity, cause=self._journal.cause))
            self._count()

    def _close_if_empty(self, lane: Lane) -> None:
        if not lane.members:
            self.closing -= lane.state is LaneState.CLOSING
            self.retired -= lane.state is LaneState.RETIRED
            lane.become(LaneState.CLOSED)
            del self.lanes[lane.id]
            self._journal.act(CloseLane(lane.id, cause=self._journal.cause))
            self._count()
            self.changed = True

    # --- members

    def drain(self, *, on: bool) -> None:
        """Let nobody begin an iteration any more, or let them again."""
        self.draining, self.changed, self.starving = on, True, None

    def place_waiting(self) -> None:
        """Find lanes for the sessions that have none, longest waiting first."""
        self.starving = self._find_starving()
        if self.starving is not None:
            self._vacate(idle_only=False)
            if self._place(self.starving):
                self.starving = None
            else:
                return
        if not self.changed:
            return
        self.changed = False
        refused = None
        for session in list(self.unplaced.values()):
            if self._journal.now < session.away_until:
                self.changed = True  # it is looked at again with the next event
                continue
            wanted = session.need + session.spilled
            if refused is not None and wanted >= refused:
                continue
            if not self._place(session):
                refused = wanted

    def _find_starving(self) -> ScheduledSession | None:
        """Return the first who has lost patience and whom it would help if others held still."""
        for session in self.unplaced.values():
            assert session.unplaced_since is not None
            if self._journal.now - session.unplaced_since < self._limits.patience_s:
                return None
            wanted = session.need + session.spilled
            fits = self.held + wanted + self._stuck_bytes() <= self.capacity
            if fits and self._journal.now >= session.away_until:
                return session
        return None

    def _stuck_bytes(self) -> int:
        """Return what iterations hold that are under way but have nothing to run, or do not end."""
        stuck = 0
        for lane in self.lanes.values():
            if lane.state is LaneState.RETIRED:
                stuck += lane.capacity + lane.suspended
                continue
            needs = [
                (each.need, each.suspended)
                for each in lane.members.values()
                if each.iteration_open and not each.has_work
            ]
            if needs:
                stuck += max(need for need, _ in needs)
                stuck += sum(need for need, suspended in needs if suspended)
        return stuck

    def _place(self, session: ScheduledSession) -> bool:
        if session.residence is Residence.SPILLING:
            return True  # it finds out when that is over
        placement = self._find(session)
        if placement is None:
            self._vacate(idle_only=True)
            placement = self._find(session)
            if placement is None:
                return False
        lane = placement.lane or self.open_lane(placement.capacity)
        self.resize(lane, placement.capacity)
        self._join(session, lane, placement.reason)
        if session.residence is Residence.AWAY:
            self.restore(session)
        return True

    def _find(self, session: ScheduledSession) -> Placement | None:
        committed = self.committed + (session.spilled - session.returning)
        maximum = self.maximum + self.retired
        return find_lane(session.need, committed, self.capacity, maximum, self.lanes.values())

    def _join(self, session: ScheduledSession, lane: Lane, reason: str) -> None:
        self._journal.note(session.story, f"joins lane {lane.id}", reason)
        if session.last_lane is not None and session.last_lane != lane.id:
            self._journal.act(MoveLane(session.id, lane.id, cause=self._journal.cause))
        if session.unplaced_since is not None:
            session.here_since = self._journal.now
        session.lane, session.last_lane, session.unplaced_since = lane, lane.id, None
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
        self.resize(lane, max(lane.capacity, session.need))
        self._join(session, lane, reason)
        self._close_if_empty(old)

    def leave(self, session: ScheduledSession, reason: str) -> None:
        """Take a session that is not pinned out of its lane; with work, it looks for another."""
        lane = session.lane
        assert lane is not None
        self._detach(session, lane)
        self._ledger.leave(session)
        self._journal.note(session.story, f"leaves lane {lane.id}", reason)
        if session.queue:
            self.wait_for_lane(session)
        self._close_if_empty(lane)
        self.changed = True

    def wait_for_lane(self, session: ScheduledSession) -> None:
        """Count a session with work and no lane among those who look for one."""
        session.unplaced_since = self._journal.now
        self.unplaced[session.id] = session
        self.changed = True

    def forget(self, session: ScheduledSession) -> None:
        """Let go of a session that is closed and has nothing left to run."""
        session.iteration_open = False
        self._uncramp(session)
        if session.lane is not None:
            self.leave(session, "closed")
        self._ledger.leave(session)
        self.held -= session.held
        del self.sessions[session.id]
        self._count()
        self.changed = True

    def _detach(self, session: ScheduledSession, lane: Lane) -> None:
        if session.suspended:
            self.resume(session)
        del lane.members[session.id]
        lane.waiting.pop(session.id, None)
        if lane.holder is session:
            lane.holder = None
        session.lane = None

    def sweep(self) -> None:
        """Clear lanes that must close, and all lanes while the safety condition is broken."""
        for lane in list(self.lanes.values()):
            if lane.state is LaneState.CLOSING:
                self._vacate_lane(lane, "the lane closes", idle_only=False)
        if self.overcommitted:
            self._vacate(idle_only=True)
        if self.overcommitted:
            self._vacate(idle_only=False)

    def _vacate(self, *, idle_only: bool) -> None:
        """Take sessions at a boundary out of all lanes, and shrink the lanes to what is left."""
        for lane in list(self.lanes.values()):
            self._vacate_lane(lane, "others need the memory", idle_only=idle_only)
            if lane.members:
                self.resize(lane, max(each.need for each in lane.members.values()))

    def _vacate_lane(self, lane: Lane, reason: str, *, idle_only: bool) -> None:
        for session in list(lane.members.values()):
            if not session.pinned and not (idle_only and session.queue):
                self.leave(session, reason)

    def validate(self) -> None:
        """Check every invariant of lanes and their memory."""
        assert self.held == sum(each.held for each in self.sessions.values())
        assert self.committed == committed_bytes(self.held, self.lanes.values())
        members = [each for lane in self.lanes.values() for each in lane.members.values()]
        assert len(members) == len({session.id for session in members})
        assert self.cramped.keys() == {
            number for number, session in self.sessions.items() if session.cramped_since is not None
        }
        assert not self.overcommitted or all(session.pinned for session in members)
        assert self.starving is None or self.starving.id in self.unplaced
        assert self.starving is None or not self.draining
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
