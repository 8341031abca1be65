"""How long things take, counted by fixed buckets: what a metrics page adds up.

Counts only grow; who wants to know of an hour takes the difference.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from typing import Final

__all__ = ["BOUNDS_S", "Counts", "Histogram"]

#: upper bounds of the buckets, in seconds; one more is for what takes longer
BOUNDS_S: Final = (
    0.0001, 0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Counts:
    """A histogram at one moment."""

    #: by bucket, not added up
    counts: tuple[int, ...]
    #: sum of all times
    seconds: float


class Histogram:
    """Counts times."""

    __slots__ = ("_counts", "_seconds")

    def __init__(self) -> None:
        self._counts = [0] * (len(BOUNDS_S) + 1)
        self._seconds = 0.0

    def note(self, seconds: float) -> None:
        """Something took so long."""
        self._counts[bisect_left(BOUNDS_S, seconds)] += 1
        self._seconds += seconds

    @property
    def now(self) -> Counts:
        """What was counted up to now."""
        return Counts(tuple(self._counts), self._seconds)
