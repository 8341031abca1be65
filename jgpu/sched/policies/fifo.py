"""First in, first out: the job that arrived first has the device whenever it has work.

A job is a cell, or what a session without cells does until it is idle. Later jobs fill the gaps
that earlier ones leave, and are interrupted between works when an earlier one comes back.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from jgpu.sched.policies.base import Policy

if TYPE_CHECKING:
    from jgpu.sched.limits import Limits
    from jgpu.sched.policies.base import SessionView

__all__ = ["Fifo"]


class Fifo(Policy):
    """The session whose job arrived first."""

    name = "fifo"
    may_starve = True
    reason = "arrived first"

    def rank(self, session: SessionView) -> tuple[float, ...]:
        """Order by arrival."""
        return (session.arrival,)

    def preempts(self, running: SessionView, candidate: SessionView, limits: Limits) -> str:
        """Let an earlier job in."""
        del limits
        return "arrived earlier" if candidate.arrival < running.arrival else ""
