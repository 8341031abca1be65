"""Classes first: interactive before normal before batch; within a class, fair.

A session of a better class is let in between two works of a worse one, however long that one's turn
has been. Batch work therefore waits without bound while others keep the device busy, which is
what the class is for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from jgpu.sched.policies.base import Choice
from jgpu.sched.policies.fair import Fair
from jgpu.sched.priorities import name_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from jgpu.sched.limits import Limits
    from jgpu.sched.policies.base import SessionView

__all__ = ["ByPriority"]


class ByPriority(Fair):
    """The best class; of that, the session that is owed most."""

    name = "priority"
    reason = "best class, least virtual time"
    may_starve = True
    batch_part = 1.0

    def rank(self, session: SessionView) -> tuple[float, ...]:
        """Order by class, then as `fair` does."""
        return (session.priority, *super().rank(session))

    def choose(self, candidates: Iterable[SessionView]) -> Choice:
        """Return the fair choice among those of the best class."""
        found = list(candidates)
        best = min(session.priority for session in found)
        chosen = super().choose([each for each in found if each.priority == best])
        return Choice(chosen.session, self.reason)

    def preempts(self, running: SessionView, candidate: SessionView, limits: Limits) -> str:
        """Let a better class in at once, and within a class whoever is owed time."""
        if candidate.priority < running.priority:
            return f"{name_of(candidate.priority)} before {name_of(running.priority)}"
        if candidate.priority > running.priority:
            return ""
        return super().preempts(running, candidate, limits)

    def outranks(self, chosen: SessionView, candidate: SessionView, limits: Limits) -> bool:
        """Whether the class is better, or it is the same and fairness asks for it."""
        if candidate.priority != chosen.priority:
            return candidate.priority < chosen.priority
        return super().outranks(chosen, candidate, limits)
