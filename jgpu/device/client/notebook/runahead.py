"""How far recording may run ahead of the device.

A loop that reads no value records faster than the device computes. Native PyTorch is stopped by
CUDA's launch queue, which holds about 1,024 launches. Here recording waits while more ops than
that are not done, and more than the device does in a quarter of a second. So a progress bar, a
loop that ends by the clock, and an interrupt are at most that far from the device.
`JGPU_RUN_AHEAD` in the environment sets other seconds.

The executor tells how far it is (`WorksDone`) once it was asked. The rate is measured between what
it tells, while it has ops to do.
"""

import math
from collections import deque
from collections.abc import Callable, Mapping
from time import monotonic
from typing import Final

from jgpu.errors import ConfigError

__all__ = ["MOST_OPS", "REPORTED_OPS", "RUN_AHEAD_S", "RunAhead", "run_ahead_s"]

#: ops that may always be sent and not done
MOST_OPS: Final = 1024
#: ops between two reports of the executor
REPORTED_OPS: Final = MOST_OPS // 2
#: seconds of the device's time that recording may be ahead
RUN_AHEAD_S: Final = 0.25
_VARIABLE: Final = "JGPU_RUN_AHEAD"
#: shortest time, in seconds, over which a rate is measured
_LEAST_S: Final = 0.005


def run_ahead_s(environ: Mapping[str, str]) -> float:
    """Return the seconds that `JGPU_RUN_AHEAD` says; `ConfigError` for what is no such number."""
    text = environ.get(_VARIABLE, "")
    try:
        seconds = float(text) if text else RUN_AHEAD_S
    except ValueError:
        seconds = math.nan
    if not seconds >= 0:
        raise ConfigError(f"{_VARIABLE}={text}: set a number of seconds from 0 on, such as 0.25.")
    return seconds


class RunAhead:
    """Counts what was sent and is not known to be done."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        #: what may always be ahead, in ops, and in seconds of the device's time
        self.most_ops, self.seconds = MOST_OPS, RUN_AHEAD_S
        #: runs that are not known to be done, oldest first: their numbers and their ops
        self._runs: deque[tuple[int, int]] = deque()
        #: sum of their ops
        self.ops = 0
        #: the executor was asked for reports
        self._is_asked = False
        #: ops a second while the device was busy; 0 if not known
        self._rate = 0.0
        #: since when the rate is measured, and the ops done since; negative: the device was idle
        self._since, self._done = -1.0, 0

    def sent(self, work: int, ops: int) -> bool:
        """A run was sent; whether the executor should be asked for reports now."""
        self._runs.append((work, ops))
        self.ops += ops
        if self._is_asked or self.ops <= REPORTED_OPS:
            return False
        self._is_asked = True
        return True

    def done(self, work: int) -> None:
        """All works up to this number are done."""
        runs, done = self._runs, 0
        while runs and runs[0][0] <= work:
            done += runs.popleft()[1]
        self.ops -= done
        now = self._clock()
        if self._since < 0:
            self._done = 0
        else:
            self._done += done
            if now - self._since < _LEAST_S:
                return
            self._rate = self._done / (now - self._since)
        self._since, self._done = now if runs else -1.0, 0

    def clear(self) -> None:
        """All that was sent is done, or taken back."""
        self._runs.clear()
        self.ops, self._since = 0, -1.0

    def forget(self) -> None:
        """Another executor serves the next run."""
        self.clear()
        self._is_asked, self._rate = False, 0.0

    @property
    def is_too_far(self) -> bool:
        """Whether recording must wait."""
        return self.ops > self.most_ops and self.ops > self._rate * self.seconds
