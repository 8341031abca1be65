"""Shortest remaining time first: the job that will be over soonest comes first.

What remains is known where a loop's length is (`LoopTold`), and is then the iterations left times
the mean device time of those that were measured. Where it is not, a job is expected to last as
long again as it has lasted, which is what a heavy-tailed distribution of durations says of it;
a job of which nothing is known yet comes first, and is known after one iteration. (Salus' SRTF is
told durations by its users: Yu and Chowdhury, MLSys 2020, section 5.1.)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from jgpu.sched.policies.base import Policy

if TYPE_CHECKING:
    from jgpu.sched.limits import Limits
    from jgpu.sched.policies.base import SessionView

__all__ = ["ShortestRemaining"]


class ShortestRemaining(Policy):
    """The session whose job needs the least device time until it is over."""

    name = "srtf"
    reason = "shortest remaining time"

    def remaining_s(self, session: SessionView) -> float:
        """Return the device time that a session's job is expected to need still."""
        known = session.remaining_s
        return session.attained_s if known is None else known

    def rank(self, session: SessionView) -> tuple[float, ...]:
        """Order by what remains, then by arrival."""
        return (self.remaining_s(session), session.arrival)

    def preempts(self, running: SessionView, candidate: SessionView, limits: Limits) -> str:
        """Let a job in that will be over sooner, by more than a turn of the running one."""
        left_s = self.remaining_s(candidate)
        sooner_s = self.remaining_s(running) - left_s
        if sooner_s <= limits.quantum_of(running.iteration_s):
            return ""
        return f"over in {left_s:.3g} s, {sooner_s:.3g} s sooner"
