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

_HERE: Final = Residence.HERE
_YIELDING: Final = Residence.YIELDING


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
        #: the youngest lease
        self._epoch = 0
        #: how long sessions waited each time before something of them ran
        self.waits = Histogram()

    # --- starting

    def fill_all(self) -> None:
        """Start what may be started now, in every lane."""
        table = self._table
        lanes = list(table.lanes.values())
        for lane in lanes:
            if lane.state is not LaneState.RETIRED:
                self._fill(lane)
        if len(lanes) > 1 and not table.blocked:
            for lane in lanes:
                if not lane.in_flight and lane.state is LaneState.OPEN:
                    self._fetch(lane, lanes)

    def _fill(self, lane: Lane) -> None:
        while lane.has_room(self._limits.least_segment_s, self._limits):
            session = self._next(lane)
            if session is None or lane.may_grow_before(session):
                return
            if not self._start(lane, session):
                return

    def _start(self, lane: Lane, session: ScheduledSession) -> bool:
        """Start as many segments of the session's next work as there is room for."""
        work = session.queue[0]
        first, end = work.started, work.started
        while end < len(work.seconds) and lane.has_room(work.seconds[end], self._limits):
            seconds = work.seconds[end]
            lane.segments += 1
            lane.in_flight_s += seconds
            session.in_flight_s += seconds
            session.user.in_flight_s += seconds
            end += 1
        count = end - first
        if count == 0:
            return False
        if first == 0:
            work.become(WorkState.STARTED)
            work.continues = session.iteration_open
            session.iteration_open = True
        work.started = end
        session.in_flight += count
        if session.state is SessionState.WAITING:
            self.waits.note(self._journal.now - session.waiting.began)
            session.become(SessionState.RUNNING)
        if end == len(work.seconds):
            session.started.append(session.queue.popleft())
            if work.ends_iteration:
                session.iteration_open = False
        lane.in_flight.append(InFlight(session, work, lane.epoch, count))
        action = Start(
            work.id, session.id, first, count, lane.id, lane.epoch, cause=self._journal.cause
        )
        self._journal.act(action)
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
            return self._pass_on(lane, self._candidates(lane))
        if holder.queue[0].started:
            return holder
        used_s = lane.used_s + holder.in_flight_s
        if self._is_over(holder, used_s):
            candidates = self._candidates(lane)
            if self._may_go_on(lane, holder):
                candidates.append(holder)
            return self._pass_on(lane, self._preferred(candidates))
        if lane.waiting and not lane.protected and used_s >= lane.look_at_s:
            lane.look_at_s = used_s + self._limits.look_s
            intruder = self._intruder(lane, holder)
            if intruder is not None:
                return intruder
        if self._may_go_on(lane, holder):
            return holder
        return self._pass_on(lane, self._candidates(lane))

    def _may_go_on(self, lane: Lane, session: ScheduledSession) -> bool:
        """Whether a session whose memory is here may start its next work."""
        if session.room.awaits_growth_since is not None:
            return False
        if session.iteration_open:
            return True
        if session.residence is _YIELDING or not self._table.may_begin(lane):
            return False
        return not self._ledger.throttles or not self._ledger.is_held_back(session)

    def _preferred(self, candidates: list[ScheduledSession]) -> list[ScheduledSession]:
        """Return the candidates whose users have not used up what is theirs, if there are any."""
        if not self._ledger.throttles:
            return candidates
        return [each for each in candidates if not each.user.throttled] or candidates

    def _is_over(self, holder: ScheduledSession, used_s: float) -> bool:
        if holder.iteration_open:
            return used_s >= self._limits.cap_of(holder.progress.iteration_s)
        return used_s >= self._limits.quantum_of(holder.progress.iteration_s)

    def _candidates(self, lane: Lane) -> list[ScheduledSession]:
        """Return the waiting members who may have the turn next as far as memory goes."""
        found = lane.waiting.values()
        if self._ledger.throttles:
            waiting = [each for each in found if each.ready and self._may_go_on(lane, each)]
        else:
            # The same, with what holds for all of them asked once: there may be hundreds.
            begins = self._table.may_begin(lane)
            waiting = [
                each
                for each in found
                if (each.residence is _HERE and (begins or each.iteration_open))
                or (each.residence is _YIELDING and each.iteration_open)
            ]
            if self._table.awaiting_growth:
                waiting = [each for each in waiting if each.room.awaits_growth_since is None]
        holder = lane.holder
        if holder is not None and holder.iteration_open and holder.room.need:
            waiting = [each for each in waiting if self._table.can_suspend(holder, each)]
        return self._preferred(waiting)

    def _intruder(self, lane: Lane, holder: ScheduledSession) -> ScheduledSession | None:
        """Give the turn to somebody to whom it is owed though the holder's is not over."""
        candidates = self._candidates(lane)
        if not candidates:
            return None
        session = self._table.sessions[self.policy.choose(candidates).session]
        if holder.user.throttled == session.user.throttled:
            reason = self.policy.preempts(holder, session, self._limits)
        else:
            reason = "the other has used up their budget" if holder.user.throttled else ""
        if not reason:
            return None
        self.lease(lane, session, reason)
        return session

    def _pass_on(
        self, lane: Lane, candidates: Sequence[ScheduledSession]
    ) -> ScheduledSession | None:
        """Give the turn to the best of the candidates, or to somebody from elsewhere."""
        if not candidates:
            return None
        session = self._overdue(lane, candidates)
        if session is not None:
            self.lease(lane, session, "has waited for too long")
            lane.protected = True
            return session
        choice = self.policy.choose(candidates)
        session = self._table.sessions[choice.session]
        elsewhere = self._owed_elsewhere(lane, session)
        if elsewhere:
            choice = self.policy.choose(elsewhere)
            session = self._table.sessions[choice.session]
        if session is not lane.holder or lane.waiting:
            self.lease(lane, session, choice.reason)
        return session

    def _owed_elsewhere(self, lane: Lane, chosen: ScheduledSession) -> list[ScheduledSession]:
        """Return sessions of other lanes that should come here before who is chosen of this."""
        table, holder = self._table, lane.holder
        if len(table.lanes) == 1 or not table.may_begin(lane):
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

    def _overdue(
        self, lane: Lane, candidates: Sequence[ScheduledSession]
    ) -> ScheduledSession | None:
        """Return the candidate that has waited longest, if longer than anybody should."""
        if self.policy.may_starve:
            return None
        longest = next(iter(lane.waiting.values()), None)
        if longest is None or longest not in candidates or longest.user.throttled:
            return None
        patience_s = self._limits.longest_wait_s * len(lane.members)
        return longest if self._journal.now - longest.waiting.turn_since > patience_s else None

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
        candidates = self._preferred([each for each in candidates if self._may_go_on(lane, each)])
        if self._pass_on(lane, candidates) is not None:
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
            assert lane.in_flight or not self._candidates(lane)
            holder = lane.holder
            if holder is not None and holder.queue and holder.ready and not lane.in_flight:
                assert not self._may_go_on(lane, holder)
