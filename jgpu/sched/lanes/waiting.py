"""Those of a lane who wait for their turn, in the order in which they began to.

The one whom a policy ranks first is found without a look at all of them, if the policy has a bound
below a session's rank that does not fall while the session waits: they lie in a heap by it, and
what is found there is ranked until the bounds are above the best.

Invariant: whoever waits is in the heap at least once, under a bound that is not above the rank.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

    from jgpu.sched.policies import Policy
    from jgpu.sched.sessions.session import ScheduledSession

__all__ = ["WaitingMembers"]

#: entries of the heap beside those who wait, at which it is made anew
_LEFT_BEHIND: Final = 64


class WaitingMembers(dict[int, "ScheduledSession"]):
    """Sessions by id."""

    __slots__ = ("_fresh", "_heap", "_policy", "_version")

    def __init__(self) -> None:
        super().__init__()
        #: (bound, id); of whoever has left, and of whoever came back, there may be some too many
        self._heap: list[tuple[tuple[float, ...], int]] = []
        #: who came since the heap was used; None where all are to be laid into it anew
        self._fresh: list[ScheduledSession] | None = None
        #: what the bounds hold under: the policy, and the version of all users' weights
        self._policy: Policy | None = None
        self._version = -1

    def join(self, session: ScheduledSession) -> None:
        """Add a session behind all others."""
        self[session.id] = session
        fresh = self._fresh
        if fresh is not None:
            if len(fresh) + len(self._heap) > 2 * len(self) + _LEFT_BEHIND:
                self._fresh = None
            else:
                fresh.append(session)

    def first(
        self,
        policy: Policy,
        version: int,
        admits: Callable[[ScheduledSession], bool],
    ) -> ScheduledSession | None:
        """Return the least of those admitted by the policy's rank.

        `version` changes with the users' weights, by which bounds are counted.
        """
        heap = self._laid_out(policy, version)
        while heap and heap[0][1] not in self:
            heappop(heap)
        if not heap:
            return None
        # Mostly the top is it, and stays where it is: the next bound is one of two.
        top = self[heap[0][1]]
        if admits(top):
            rank = policy.rank(top)
            if (len(heap) < 2 or rank < heap[1][0]) and (len(heap) < 3 or rank < heap[2][0]):
                return top
        best, least = None, None
        seen: dict[int, ScheduledSession] = {}
        while heap and (least is None or heap[0][0] <= least):
            number = heappop(heap)[1]
            session = self.get(number)
            if session is None or number in seen:
                continue
            seen[number] = session
            if not admits(session):
                continue
            rank = policy.rank(session)
            if least is None or rank < least:
                best, least = session, rank
        for number, session in seen.items():
            heappush(heap, (policy.bound(session), number))
        return best

    def _laid_out(self, policy: Policy, version: int) -> list[tuple[tuple[float, ...], int]]:
        fresh, heap = self._fresh, self._heap
        if fresh is None or self._policy is not policy or self._version != version:
            self._policy, self._version, self._fresh = policy, version, []
            self._heap = heap = [(policy.bound(each), each.id) for each in self.values()]
            heapify(heap)
        elif fresh:
            for session in fresh:
                heappush(heap, (policy.bound(session), session.id))
            fresh.clear()
        return heap

    def validate(self) -> None:
        """Check that everybody would be found."""
        policy = self._policy
        if self._fresh is None or policy is None:
            return
        bounds: dict[int, tuple[float, ...]] = {}
        for bound, number in self._heap:
            bounds[number] = min(bound, bounds.get(number, bound))
        fresh = {each.id for each in self._fresh}
        for number, session in self.items():
            assert number in fresh or bounds[number] <= policy.rank(session)
