"""How fast work runs whose lanes are busy at the same time.

Each job has a *load*: the part of the device that it keeps busy, interference included. Jobs whose
loads add up to at most 1 run side by side at full speed; beyond that all are slowed in proportion
to the sum. So n copies of a job with load s do min(n, 1/s) times the work of one, and 1/s is what
packing gains at best. A load above 1 is a job that loses by company.

Loads come from Gandiva's table (Xiao et al., OSDI 2018, Table 1), where both throughputs were
measured: load = time-sliced / packed.

What this leaves out: which resource is short (memory bandwidth, caches, SMs), the asymmetry between
neighbours, power and clock limits. The rule: a job alone runs at speed 1 whatever its load.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["packing_load", "speed"]


def speed(loads: Sequence[float]) -> float:
    """Return the speed, at most 1, at which jobs of these loads run side by side."""
    return 1.0 if len(loads) < 2 else 1.0 / max(1.0, sum(loads))


def packing_load(sliced: float, packed: float) -> float:
    """Return the load of a job whose throughput was measured time-sliced and packed."""
    return sliced / packed
