"""Bound how far recording runs ahead of the device.

A loop that reads no values records faster than the device computes. CUDA's launch queue stops
native PyTorch after about 1,024 launches. Here recording waits while more ops than that, and more
than the device executes in a quarter of a second, are not complete. Progress bars, timers and
interrupts are at most that far from the device. `JGPU_RUN_AHEAD` in the environment sets other
seconds.

The executor reports progress (`WorksDone`) after one request. The rate is measured between
reports while the device is busy.
"""

import math
from collections import deque
from collections.abc import Callable, Mapping
from time import monotonic
from typing import Final

from jgpu.errors import ConfigError

__all__ = ["MOST_OPS", "REPORTED_OPS", "RUN_AHEAD_S", "RunAhead", "run_ahead_s"]

#: ops that may always be ahead
MOST_OPS: Final = 1024
#: ops between two reports of the executor
REPORTED_OPS: Final = MOST_OPS // 2
#: seconds of the device's time that recording may be ahead
RUN_AHEAD_S: Final = 0.25
_VARIABLE: Final = "JGPU_RUN_AHEAD"
#: shortest time, in seconds, over which a rate is measured
_LEAST_S: Final = 0.005


def run_ahead_s(environ: Mapping[str, str]) -> float:
    """Return the seconds in `JGPU_RUN_AHEAD`, or the default. Raises `ConfigError`."""
    text = environ.get(_VARIABLE, "")
    try:
        seconds = float(text) if text else RUN_AHEAD_S
    except ValueError:
        seconds = math.nan
    if not seconds >= 0:
        raise ConfigError(f"{_VARIABLE}={text}: set a number of seconds from 0 on, such as 0.25.")
    return seconds


class RunAhead:
    """Counts ops of runs that were sent and are not known to be complete."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        #: ops that may always be ahead, and seconds of the device's time
        self.most_ops, self.seconds = MOST_OPS, RUN_AHEAD_S
        #: runs not known to be complete, oldest first: (number, count of ops)
        self._runs: deque[tuple[int, int]] = deque()
        #: sum of their ops
        self.ops = 0
        #: reports were requested
        self._is_asked = False
        #: ops a second while the device was busy; 0 if not known
        self._rate = 0.0
        #: start of the interval that is measured, -1 while the device is idle, and ops since then
        self._since, self._done = -1.0, 0

    def sent(self, work: int, ops: int) -> bool:
        """Count a run that was sent; return whether to request reports now."""
        self._runs.append((work, ops))
        self.ops += ops
        if self._is_asked or self.ops <= REPORTED_OPS:
            return False
        self._is_asked = True
        return True

    def done(self, work: int) -> None:
        """Count all works up to this number as complete."""
        runs, done = self._runs, 0
        while runs and runs[0][0] <= work:
            done += runs.popleft()[1]
        self.ops -= done
        self._done += done
        now = self._clock()
        if self._since >= 0 and now - self._since >= _LEAST_S:
            self._rate = self._done / (now - self._since)
        elif self._since >= 0 and runs:
            return
        self._since, self._done = now if runs else -1.0, 0

    def clear(self) -> None:
        """Reset after all runs were completed or cancelled."""
        self._runs.clear()
        self.ops, self._since = 0, -1.0

    def forget(self) -> None:
        """Reset for another executor."""
        self.clear()
        self._is_asked, self._rate = False, 0.0

    @property
    def is_too_far(self) -> bool:
        """Whether recording must wait."""
        return self.ops > self.most_ops and self.ops > self._rate * self.seconds
