"""Where a user stands with their budget of device time, and the sentences that say so.

Pure: what was used and what time it is are arguments.
"""

import enum
import time
from dataclasses import dataclass
from typing import Final

from jgpu.broker.control.quotas.ledger.window import Window
from jgpu.broker.control.quotas.spec import Quota, show

__all__ = ["Standing", "Verdict", "judge", "sentence"]


class Standing(enum.Enum):
    """What a budget means for its user's work just now."""

    WITHIN = "within"
    #: used up; said, and nothing else
    WARNED = "warned"
    #: used up; runs only when the device would idle
    THROTTLED = "throttled"
    #: used up; new work is refused
    DENIED = "denied"


_BEYOND: Final = {
    "warn": Standing.WARNED,
    "throttle": Standing.THROTTLED,
    "deny": Standing.DENIED,
}
_MEANING: Final = {
    Standing.WARNED: "Notebooks go on as before",
    Standing.THROTTLED: "Notebooks run only while nobody else needs the device",
    Standing.DENIED: "New work is refused; what is on the device stays, and can be read and saved",
}


@dataclass(frozen=True, slots=True)
class Verdict:
    """A standing and its figures: device-seconds, seconds, and seconds since the epoch."""

    standing: Standing
    used_s: float
    #: 0: there is no budget
    budget_s: float
    period_s: float
    #: when less than the budget will have been used; now, where that is so
    free_at: float


def judge(quota: Quota, window: Window, now: float) -> Verdict:
    """Where the user of this window stands."""
    used_s, budget_s = window.used(now), quota.device_seconds
    if not budget_s or used_s < budget_s:
        return Verdict(Standing.WITHIN, used_s, budget_s, quota.period, now)
    free_at = window.below_at(budget_s, now)
    return Verdict(_BEYOND[quota.over_budget], used_s, budget_s, quota.period, free_at)


def sentence(user: str, verdict: Verdict, now: float) -> str:
    """What a user is told who is beyond their budget: the numbers, what it means, until when."""
    return (
        f"{user} has used {_figure(verdict.used_s)} of {_figure(verdict.budget_s)} device-seconds "
        f"that may be used in any {show('period', verdict.period_s)}. "
        f"{_MEANING[verdict.standing]}, until {_moment(verdict.free_at, now)}, when enough of that "
        "is long enough ago."
    )


def _figure(seconds: float) -> str:
    return f"{seconds:.3g}" if seconds < 1000 else f"{seconds:.0f}"


def _moment(at: float, now: float) -> str:
    """A time of day, with the date if it is not within a day, and how far it is."""
    left_s = max(0.0, at - now)
    pattern = "%H:%M:%S" if left_s < 3600 else "%H:%M" if left_s < 86400 else "%Y-%m-%d %H:%M"
    # Rounded up: who tries again at the time that was told must not be too early.
    shown = time.strftime(pattern, time.localtime(at + (1 if left_s < 3600 else 60)))
    return f"{shown} (in {_distance(left_s)})"


def _distance(left_s: float) -> str:
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if left_s >= 2 * size:
            return f"{left_s / size:.0f} {unit}"
    return f"{max(1.0, left_s):.0f} s"
