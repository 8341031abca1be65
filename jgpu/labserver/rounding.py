"""Figures as a page shows them: what differs by less is not told.

Whatever there is of something stays visible: only nothing is 0.
"""

import math
from typing import Final

__all__ = ["round_bytes", "round_moment", "round_seconds"]

_MIB: Final = 1 << 20
_GIB: Final = 1 << 30
_DIGITS: Final = 3


def round_bytes(nbytes: int) -> int:
    """To a MiB, from a GiB on to three digits; what is less than a MiB counts as one."""
    if nbytes < _GIB:
        return max(_MIB, (nbytes + _MIB // 2) // _MIB * _MIB) if nbytes > 0 else 0
    unit: int = 10 ** (len(str(nbytes)) - _DIGITS)
    return (nbytes + unit // 2) // unit * unit


def round_seconds(seconds: float) -> float:
    """To three digits; what is not finite, or below 0, is 0."""
    if not 0.0 < seconds < math.inf:
        return 0.0
    return float(f"{seconds:.{_DIGITS}g}")


def round_moment(moment: float) -> float:
    """To a tenth of a second; what is not finite is 0."""
    return round(moment, 1) if math.isfinite(moment) else 0.0
