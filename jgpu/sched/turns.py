"""Whose turn it is in each lane, and what is started.

A session keeps its lane until its quantum is over and an iteration ends, or it has no work. At
`Limits.hard_cap_s` a turn ends between works; between works, too, somebody may be let in whom the
policy says the turn is owed to. Each lane is kept fed with a little more than it is at, so that it
never idles, and no more, so that whoever comes next is soon served.

The rule: never a switch inside a work, never a second session's memory where there is no room
for it, never an idle lane while somebody may run in it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from jgpu.sched.actions import Start
from jgpu.sched.lanes.candidates import Candidates
from jgpu.sched.lanes.lane import InFlight
from jgpu.sched.reports.measures import Histogram
from jgpu.sched.states import LaneState, Residence, SessionState, WorkState

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jgpu.sched.journal import Journal
    from jgpu.sched.lanes.lane import Lane
    from jgpu.sched.lanes.table import LaneTable
    from jgpu.sched.ledger import FairShare
    from jgpu.sched.limits import Limits
    from jgpu.sched.policies import Policy
    from jgpu.sched.sessions.session import ScheduledSession

__all__ = ["Turns"]

# Plain, for looking into an enumeration takes longer than most of what is done here.
_HERE: Final = Residence.HERE
_YIELDING: Final = Residence.YIELDING
_RETIRED: Final = LaneState.RETIRED
_STARTED: Final = WorkState.STARTED
_WAITING: Final = SessionState.WAITING
_RUNNING: Final = SessionState.RUNNING


class Turns:
    """Gives leases and starts segments."""

    def __init__(
        self, limits: Limits, journal: Journal, ledger: FairShare, table: LaneTable, policy: Policy
    ) -> None:
        self._limits = limits
        self._journal = journal
        self._ledger = ledger
        self._table = table
        #: who decides; replaced when the policy changes
        self.policy = policy
        self._candidates = Candidates(limits, ledger, table)
        #: segments, and their time with what sums of it are off by, that a lane may have in flight
        self._most_segments = limits.in_flight_segments
        self._most_s = limits.in_flight_s * (1 + 1e-9)
        #: the youngest lease
        self._epoch = 0
        #: how long sessions waited each time before something of them ran
        self.waits = Histogram()

    # --- starting

    def fill_all(self) -> None:
        """Start what may be started now, in every lane."""
        table = self._table
        if len(table.lanes) == 1:
            for lane in table.lanes.values():  # nobody can leave it for another
                if lane.state is not _RETIRED:
                    self._fill(lane)
            return
        lanes = list(table.lanes.values())
        for lane in lanes:
            if lane.state is not _RETIRED:
                self._fill(lane)
        if not table.blocked:
            for lane in lanes:
                if not lane.in_flight and lane.state is LaneState.OPEN:
                    self._fetch(lane, lanes)

    def _fill(self, lane: Lane) -> None:
        most, least_s = self._most_segments, self._limits.least_segment_s
        while lane.segments < most or lane.in_flight_s + least_s <= self._most_s:
            holder = lane.holder
            nobody = not lane.waiting and (holder is None or not holder.queue)
            if nobody and len(self._table.lanes) == 1:
                return  # for nobody has anything to run, as `_next` would find
            session = self._next(lane)
            if session is None:
                return
            # How much an iteration leaves behind is known when it is over; until then nobody
            # else's memory is promised behind it.
            if lane.in_flight:
                last = lane.in_flight[-1].session
                if last is not session and last.room.may_grow:
                    return
            if not self._start(lane, session):
                return

    def _start(self, lane: Lane, session: ScheduledSession) -> bool:
        """Start as many segments of the session's next work as there is room for."""
        work, user = session.queue[0], session.user
        most, most_s = self._most_segments, self._most_s
        first = work.started
        end, whole = first, len(work.seconds)
        while end < whole:
            seconds = work.seconds[end]
            if lane.segments >= most and lane.in_flight_s + seconds > most_s:
                break
            lane.segments += 1
            lane.in_flight_s += seconds
            session.in_flight_s += seconds
            user.in_flight_s += seconds
            end += 1
        count = end - first
        if count == 0:
            return False
        if first == 0:
            work.become(_STARTED)
            work.continues = session.iteration_open
            session.iteration_open = True
        work.started = end
        session.in_flight += count
        if session.state is _WAITING:
            self.waits.note(self._journal.now - session.waiting.began)
            session.become(_RUNNING)
        if end == whole:
            session.started.append(session.queue.popleft())
            if work.ends_iteration:
                session.iteration_open = False
        lane.in_flight.append(InFlight(session, work, lane.epoch, count))
        journal = self._journal
        journal.act(
            Start(work.id, session.id, first, count, lane.id, lane.epoch, cause=journal.cause)
        )
        return True

    # --- choosing

    def _next(self, lane: Lane) -> ScheduledSession | None:
        """Return the session whose segment comes next in a lane, with the turn given to it."""
        holder = lane.holder
        if (
            holder is None
            or not holder.queue
            or (holder.residence is not _HERE and holder.residence is not _YIELDING)
        ):
            return self._pass_on(lane)
        if holder.queue[0].started:
            return holder
        used_s, limits = lane.used_s + holder.in_flight_s, self._limits
        iteration_s, is_open = holder.progress.iteration_s, holder.iteration_open
        if used_s >= (limits.cap_of(iteration_s) if is_open else limits.quantum_of(iteration_s)):
            goes_on = self._candidates.may_go_on(lane, holder)
            return self._pass_on(lane, holder if goes_on else None)
        if lane.waiting and not lane.protected and used_s >= lane.look_at_s:
            lane.look_at_s = used_s + limits.look_s
            intruder = self._intruder(lane, holder)
            if intruder is not None:
                return intruder
        if self._candidates.may_go_on(lane, holder):
            return holder
        return self._pass_on(lane)

    def _intruder(self, lane: Lane, holder: ScheduledSession) -> ScheduledSession | None:
        """Give the turn to somebody to whom it is owed though the holder's is not over."""
        first = self._candidates.first(lane, self.policy)
        if first is None:
            return None
        session = first[0]
        if holder.user.throttled == session.user.throttled:
            reason = self.policy.preempts(holder, session, self._limits)
        else:
            reason = "the other has used up their budget" if holder.user.throttled else ""
        if not reason:
            return None
        self.lease(lane, session, reason)
        return session

    def _pass_on(
        self, lane: Lane, beside: ScheduledSession | None = None
    ) -> ScheduledSession | None:
        """Give the turn to the best of those who may have it, or to somebody from elsewhere.

        `beside` them is the holder, where the turn is over and another may be theirs.
        """
        if not lane.waiting and len(self._table.lanes) == 1:
            return beside  # there is nobody else, who needs no new lease
        session = self._overdue(lane)
        if session is not None:
            self.lease(lane, session, "has waited for too long")
            lane.protected = True
            return session
        first = self._candidates.first(lane, self.policy, beside)
        return None if first is None else self._give(lane, *first)

    def _give(self, lane: Lane, session: ScheduledSession, reason: str) -> ScheduledSession:
        """Give the turn to a session, unless somebody of another lane should come before it."""
        if len(self._table.lanes) > 1:
            elsewhere = self._candidates.chosen(self.policy, self._owed_elsewhere(lane, session))
            if elsewhere is not None:
                session, reason = elsewhere
        if session is not lane.holder or lane.waiting:
            self.lease(lane, session, reason)
        return session

    def _owed_elsewhere(self, lane: Lane, chosen: ScheduledSession) -> list[ScheduledSession]:
        """Return sessions of other lanes that should come here before who is chosen of this."""
        table, holder = self._table, lane.holder
        if not table.may_begin(lane):
            return []
        if holder is not None and holder.iteration_open:
            return []
        return [
            session
            for other in table.lanes.values()
            if other is not lane
            for session in other.waiting.values()
            if table.can_move(session, lane)
            and session.user.throttled == chosen.user.throttled
            and self.policy.outranks(chosen, session, self._limits)
        ]

    def _overdue(self, lane: Lane) -> ScheduledSession | None:
        """Return who has waited longest, if longer than anybody should and they may run."""
        if self.policy.may_starve:
            return None
        longest = next(iter(lane.waiting.values()), None)
        if longest is None or longest.user.throttled:
            return None
        patience_s = self._limits.longest_wait_s * len(lane.members)
        if self._journal.now - longest.waiting.turn_since <= patience_s:
            return None
        return longest if self._candidates.admits(lane, longest) else None

    def _fetch(self, lane: Lane, lanes: Sequence[Lane]) -> None:
        """Let an idle lane serve somebody who waits in another one."""
        holder, table = lane.holder, self._table
        candidates = [
            session
            for other in lanes
            if other is not lane
            for session in other.waiting.values()
            if table.can_move(session, lane)
        ]
        if holder is not None and holder.iteration_open:
            candidates = [each for each in candidates if self._fits_beside(holder, each, lane)]
        able = [each for each in candidates if self._candidates.may_go_on(lane, each)]
        chosen = self._candidates.chosen(self.policy, self._candidates.preferred(able))
        if chosen is not None:
            self._give(lane, *chosen)
            self._fill(lane)

    def _fits_beside(self, holder: ScheduledSession, session: ScheduledSession, lane: Lane) -> bool:
        more = holder.room.need + max(0, session.room.need - lane.capacity)
        return more == 0 or self._table.committed + more <= self._table.capacity

    def lease(self, lane: Lane, session: ScheduledSession, reason: str) -> None:
        """Give a session the turn in a lane; who had it waits, suspended in mid-iteration."""
        holder = lane.holder
        self._epoch += 1
        lane.epoch, lane.used_s, lane.look_at_s = self._epoch, 0.0, self._limits.look_s
        lane.protected = False
        if holder is session:
            return
        if session.lane is not lane:
            self._table.move(session, lane, reason)
        if session.room.suspended:
            self._table.resume(session)
        if holder is not None:
            if holder.iteration_open:
                self._table.suspend(holder)
            if holder.queue:
                lane.await_turn(holder, self._journal.now)
        lane.waiting.pop(session.id, None)
        lane.holder = session
        self._journal.note(session.story, f"has the turn in lane {lane.id}", reason)

    def validate(self) -> None:
        """Check that lanes are fed, and not too far ahead."""
        for lane in self._table.lanes.values():
            assert lane.epoch <= self._epoch
            if lane.segments > self._limits.in_flight_segments:
                assert lane.in_flight_s <= self._limits.in_flight_s * (1 + 1e-6)
            able = self._candidates.of(lane)
            assert lane.in_flight or not able
            first = self._candidates.first(lane, self.policy)
            assert first == self._candidates.chosen(self.policy, able)
            holder = lane.holder
            if holder is not None and holder.queue and holder.ready and not lane.in_flight:
                assert not self._candidates.may_go_on(lane, holder)
