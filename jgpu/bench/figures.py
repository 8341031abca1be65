"""Medians, ratios and their bootstrap intervals; no clock and no torch.

The ratio of a pair is device time over native time; pairs are resampled whole, so that a slow
moment of the host that fell on both of a pair weighs as one.
"""

import random
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["Ratio", "ratio_of"]


@dataclass(frozen=True, slots=True)
class Ratio:
    """Median ratio of paired times with a bootstrap 95 % interval."""

    median: float
    low: float
    high: float


def ratio_of(pairs: Sequence[tuple[float, float]], *, rounds: int = 10_000, seed: int = 1) -> Ratio:
    """The ratio second/first over `pairs`; the same pairs always give the same interval."""
    ratios = [second / first for first, second in pairs]
    chance = random.Random(seed)
    medians = sorted(
        statistics.median(chance.choices(ratios, k=len(ratios))) for _ in range(rounds)
    )
    return Ratio(
        statistics.median(ratios), medians[int(0.025 * rounds)], medians[int(0.975 * rounds)]
    )
