"""Parts and times as a person says them; sizes alone are `jgpu.wire.sizes`'s."""

from typing import Final

from jgpu.wire.sizes import short_size

__all__ = ["of", "seconds"]

_SPANS: Final = (("d", 86400.0), ("h", 3600.0), ("min", 60.0))


def of(part: int, whole: int) -> str:
    """A part of a whole, with one unit where it is the same: "1.2 of 4 GiB"."""
    all_of_it = short_size(whole)
    return f"{short_size(part).removesuffix(all_of_it[all_of_it.index(' ') :])} of {all_of_it}"


def seconds(span: float) -> str:
    """A time: "12.3 s", "5.7 min", "4 h"."""
    for unit, one in _SPANS:
        if span >= one:
            return f"{_short(span / one)} {unit}"
    return f"{_short(span)} s"


def _short(number: float) -> str:
    """One digit after the point below a hundred, and none where it would be 0."""
    return f"{number:.0f}" if number >= 100 else f"{number:.1f}".removesuffix(".0")
