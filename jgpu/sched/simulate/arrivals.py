"""Generated arrivals and durations. Chance is an argument: `random.Random(seed)` will do.

The rule: the same generator in the same state gives the same workload.
"""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Chance", "bursts", "heavy_tailed", "poisson", "uniform"]


class Chance(Protocol):
    """Where numbers drawn by lot come from."""

    def uniform(self, a: float, b: float) -> float:
        """Return a number between two."""

    def expovariate(self, lambd: float) -> float:
        """Return an exponentially distributed number with mean 1 / lambd."""

    def lognormvariate(self, mu: float, sigma: float) -> float:
        """Return a number whose logarithm is normal."""


def poisson(chance: Chance, count: int, rate: float) -> list[float]:
    """Return `count` arrival times, `rate` a second on average, independent of each other."""
    return list(accumulate(chance.expovariate(rate) for _ in range(count)))


def uniform(chance: Chance, count: int, over_s: float) -> list[float]:
    """Return `count` arrival times anywhere in a span, ascending."""
    return sorted(chance.uniform(0.0, over_s) for _ in range(count))


def bursts(chance: Chance, count: int, size: int, every_s: float, spread_s: float) -> list[float]:
    """Return `count` arrival times, `size` at a time, each up to `spread_s` late; ascending."""
    return sorted(
        number // size * every_s + chance.uniform(0.0, spread_s) for number in range(count)
    )


def heavy_tailed(chance: Chance, count: int, sigma: float, total: float) -> list[float]:
    """Return log-normal durations, most short and few long, that add up to `total`."""
    raw: Sequence[float] = [chance.lognormvariate(0.0, sigma) for _ in range(count)]
    factor = total / sum(raw)
    return [each * factor for each in raw]
