"""Gandiva's packing: share lanes in parallel as long as that makes more of the device.

Whether two jobs run well side by side is not foreseen, it is tried (Xiao et al., Gandiva, OSDI
2018, section 3.3): first one after the other in a single lane; then with one lane more for a
while; the lane is kept if more work was done in the same time than before, and is taken back if
not. What counts as work is device time by what programs took when they ran alone, so that a
program that is slowed by its neighbour does not count for more. A verdict holds until a job comes
or goes; then the trial begins anew. Within the lanes, turns are fair.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from jgpu.sched.policies.fair import Fair

if TYPE_CHECKING:
    from jgpu.sched.limits import Limits
    from jgpu.sched.policies.base import Progress

__all__ = ["Pack"]


class Pack(Fair):
    """Fair turns, in as many lanes as were seen to be worth it."""

    name = "pack"
    reason = "least virtual time"
    plans_lanes = True

    def __init__(self) -> None:
        #: the lanes in use; what they gave, in seconds of work a second, is in `_rates`
        self._lanes = 1
        #: rate measured with each number of lanes, for the jobs that there are now
        self._rates: dict[int, float] = {}
        self._settled = False
        self._version = -1
        self._began_s = 0.0
        self._worked_s = 0.0

    def lanes(self, progress: Progress, limits: Limits) -> int:
        """Return how many lanes there should be, of `progress.lanes_at_most`."""
        if progress.version != self._version:
            self._begin_anew(progress)
        elif not self._settled:
            elapsed_s = progress.now - self._began_s
            if elapsed_s >= limits.trial_s and progress.lanes == self._lanes:
                rate = (progress.worked_s - self._worked_s) / elapsed_s
                self._judge(rate, progress, limits)
        return self._lanes

    def _begin_anew(self, progress: Progress) -> None:
        self._version = progress.version
        self._lanes, self._rates, self._settled = 1, {}, progress.jobs < 2
        self._measure_from(progress)

    def _measure_from(self, progress: Progress) -> None:
        self._began_s, self._worked_s = progress.now, progress.worked_s

    def _judge(self, rate: float, progress: Progress, limits: Limits) -> None:
        self._rates[self._lanes] = rate
        before = self._rates.get(self._lanes - 1, 0.0)
        if rate < before * (1 + limits.least_gain):
            self._lanes -= 1
            self._settled = True
        elif self._lanes >= min(progress.lanes_at_most, progress.jobs):
            self._settled = True
        else:
            self._lanes += 1
        self._measure_from(progress)
