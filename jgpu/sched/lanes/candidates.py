"""Who of a lane may have the turn next, as far as memory and budgets go, and who comes first.

There may be hundreds, and they are asked for with every turn: so they are listed only where few
wait, or where the policy has no bound by which the first is found without a list.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from jgpu.sched.states import Residence

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from jgpu.sched.lanes.lane import Lane
    from jgpu.sched.lanes.table import LaneTable
    from jgpu.sched.ledger import FairShare
    from jgpu.sched.limits import Limits
    from jgpu.sched.policies import Policy
    from jgpu.sched.sessions.session import ScheduledSession

__all__ = ["Candidates"]

_HERE: Final = Residence.HERE
_YIELDING: Final = Residence.YIELDING


class Candidates:
    """Looks for them."""

    def __init__(self, limits: Limits, ledger: FairShare, table: LaneTable) -> None:
        self._limits = limits
        self._ledger = ledger
        self._table = table

    def may_go_on(self, lane: Lane, session: ScheduledSession) -> bool:
        """Whether a session whose memory is here may start its next work."""
        if session.room.awaits_growth_since is not None:
            return False
        if session.iteration_open:
            return True
        if session.residence is _YIELDING or not self._table.may_begin(lane):
            return False
        return not self._ledger.throttles or not self._ledger.is_held_back(session)

    def of(self, lane: Lane) -> list[ScheduledSession]:
        """Return the waiting members who may have the turn next."""
        admits = self._rule(lane)
        return self.preferred([each for each in lane.waiting.values() if admits(each)])

    def preferred(self, candidates: list[ScheduledSession]) -> list[ScheduledSession]:
        """Return the candidates whose users have not used up what is theirs, if there are any."""
        if not self._ledger.throttles:
            return candidates
        return [each for each in candidates if not each.user.throttled] or candidates

    def first(
        self, lane: Lane, policy: Policy, beside: ScheduledSession | None = None
    ) -> tuple[ScheduledSession, str] | None:
        """Return whom the policy chooses of them, and of the session `beside` them, and why."""
        waiting = lane.waiting
        if (
            len(waiting) <= self._limits.listed_at_most
            or not policy.is_bounded
            or self._ledger.throttles
        ):
            found = self.of(lane)
            if beside is not None:
                found = self.preferred([*found, beside])
            return self.chosen(policy, found)
        best = waiting.first(policy, self._ledger.version, self._rule(lane))
        if best is None or (beside is not None and policy.rank(beside) < policy.rank(best)):
            best = beside
        return None if best is None else (best, policy.reason)

    def chosen(
        self, policy: Policy, candidates: Sequence[ScheduledSession]
    ) -> tuple[ScheduledSession, str] | None:
        """Return whom the policy chooses of these, and why; None of nobody."""
        if not candidates:
            return None
        choice = policy.choose(candidates)
        return self._table.sessions[choice.session], choice.reason

    def admits(self, lane: Lane, session: ScheduledSession) -> bool:
        """Whether a waiting member is among them, but for others who are preferred."""
        return self._rule(lane)(session)

    def _rule(self, lane: Lane) -> Callable[[ScheduledSession], bool]:
        """Return what says who may have the turn; what holds for all of them is asked once."""
        table, holder = self._table, lane.holder
        aside = holder if holder and holder.iteration_open and holder.room.need else None
        if self._ledger.throttles or table.awaiting_growth:
            return lambda each: (
                each.ready
                and self.may_go_on(lane, each)
                and (aside is None or table.can_suspend(aside, each))
            )
        may_run = _may_begin if table.may_begin(lane) else _may_only_go_on
        if aside is not None:
            return lambda each: may_run(each) and table.can_suspend(aside, each)
        return may_run


def _may_begin(session: ScheduledSession) -> bool:
    residence = session.residence
    return residence is _HERE or (residence is _YIELDING and session.iteration_open)


def _may_only_go_on(session: ScheduledSession) -> bool:
    residence = session.residence
    return session.iteration_open and (residence is _HERE or residence is _YIELDING)
