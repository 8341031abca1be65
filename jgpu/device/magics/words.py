"""Sizes and times as a person says them."""

from typing import Final

__all__ = ["of", "seconds", "size"]

_UNITS: Final = (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10))
_SPANS: Final = (("d", 86400.0), ("h", 3600.0), ("min", 60.0))


def size(nbytes: int) -> str:
    """Bytes with as many digits as matter: "1.2 GiB", "340 MiB", "12 bytes"."""
    for unit, one in _UNITS:
        if nbytes >= one:
            return f"{_short(nbytes / one)} {unit}"
    return f"{nbytes} bytes" if nbytes else "0"


def of(part: int, whole: int) -> str:
    """A part of a whole, with one unit where it is the same: "1.2 of 4 GiB"."""
    first, _, unit = size(part).partition(" ")
    return f"{first} of {size(whole)}" if size(whole).endswith(f" {unit}") else (
        f"{size(part)} of {size(whole)}"
    )  # fmt: skip


def seconds(span: float) -> str:
    """A time: "12.3 s", "5.7 min", "4 h"."""
    for unit, one in _SPANS:
        if span >= one:
            return f"{_short(span / one)} {unit}"
    return f"{_short(span)} s"


def _short(number: float) -> str:
    """One digit after the point below a hundred, and none where it would be 0."""
    return f"{number:.0f}" if number >= 100 else f"{number:.1f}".removesuffix(".0")
