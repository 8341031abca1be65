"""How far a session has come, and since when it waits."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

__all__ = ["SessionProgress", "WaitTimes"]


@dataclass(slots=True, eq=False)
class SessionProgress:
    """What was measured of a session, and how far its job has come."""

    #: device time charged; never falls
    device_seconds: float = 0.0
    #: `device_seconds` when its job arrived; at most `device_seconds`
    arrived_s: float = 0.0
    #: value of `iterations` at which its job's loops end; None where nobody told
    loop_end: int | None = None
    #: device time of an iteration as it was foretold; 0 where it was not
    foretold_s: float = 0.0
    #: iterations finished
    iterations: int = 0
    #: mean device time of the last ones; 0 before the first
    iteration_s: float = 0.0
    #: device times of the last ones, oldest first
    iteration_times: deque[float] = field(default_factory=deque)
    #: device time measured since the last one finished
    current_s: float = 0.0

    @property
    def remaining_s(self) -> float | None:
        """Device time that the job will still need; None where no loop was told of."""
        if self.loop_end is None:
            return None
        left = max(0, self.loop_end - self.iterations)
        return max(0.0, left * (self.iteration_s or self.foretold_s) - self.current_s)

    def arrive(self) -> None:
        """A job arrives: what there was before is not its own."""
        self.arrived_s = self.device_seconds
        self.loop_end = None

    def end_iteration(self, newest: float) -> float:
        """Count an iteration that has finished, by so much of the mean; returns what it took."""
        took_s, self.current_s = self.current_s, 0.0
        part = newest if self.iterations else 1.0
        self.iterations += 1
        self.iteration_s += part * (took_s - self.iteration_s)
        self.iteration_times.append(took_s)
        return took_s

    def validate(self) -> None:
        """Check every invariant of what was measured."""


@dataclass(slots=True, eq=False)
class WaitTimes:
    """Since when a session waits, and for what; the lane that it was in."""

    #: when it last came to wait for its turn; means nothing while it does not
    turn_since: float = 0.0
    #: when it last came to be WAITING; means nothing while it is not
    began: float = 0.0
    #: since when it has work and no lane; None unless that is so
    lane_since: float | None = None
    #: when it last left a lane; None before
    left_at: float | None = None
    #: when it last ceased to be active; None before
    idle_since: float | None = None
    #: number of the lane it last belonged to, None before the first
    last_lane: int | None = None
