"""Least attained service, in queues: long jobs make way for short ones, without foreseeing either.

Discretised two-dimensional least attained service (Gu et al., Tiresias, NSDI 2019, section 3.3); on
one device the second dimension, the number of GPUs, is one. A job moves down from queue to queue
as it is served; a job of a lower queue runs only where none of a higher one can, and within a
queue the job that arrived first comes first, so that jobs of one length do not slow each other.
Tiresias' figures have two queues with a threshold of 3200 GPU-seconds, for jobs of hours; a
notebook's cells are shorter, so there are more queues here, and they begin lower.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING, ClassVar

from jgpu.sched.policies.base import Policy

if TYPE_CHECKING:
    from jgpu.sched.limits import Limits
    from jgpu.sched.policies.base import SessionView

__all__ = ["LeastAttainedService"]


class LeastAttainedService(Policy):
    """The job that has been served least, by queues; of one queue, the one that arrived first."""

    name = "las"
    reason = "served least"
    #: device seconds after which a job goes down to the second queue, the third, and so on
    thresholds_s: ClassVar[tuple[float, ...]] = (1.0, 10.0, 100.0, 1000.0)

    def queue_of(self, session: SessionView) -> int:
        """Return the number of the queue that a session's job is in, 0 for the highest."""
        return bisect_right(self.thresholds_s, session.attained_s)

    def rank(self, session: SessionView) -> tuple[float, ...]:
        """Order by queue, then by arrival."""
        return (self.queue_of(session), session.arrival)

    def preempts(self, running: SessionView, candidate: SessionView, limits: Limits) -> str:
        """Let a job of a higher queue in."""
        del limits
        mine, other = self.queue_of(candidate), self.queue_of(running)
        return f"in queue {mine}, not {other}" if mine < other else ""
