"""Sizes and times in words.

As torch prints them in its messages; short, for tables; exact, as settings are written.
"""

from __future__ import annotations

from typing import Final

__all__ = ["duration", "exact_size", "exact_time", "short_size", "size_text"]

_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB")
_SIZES: Final = (("T", 1 << 40), ("G", 1 << 30), ("M", 1 << 20), ("K", 1 << 10))
_TIMES: Final = (("d", 86400), ("h", 3600), ("m", 60))


def size_text(nbytes: int) -> str:
    """Return a size as "1.50 GiB", "2.00 MiB" or "512 bytes"."""
    for unit, size in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if nbytes >= size:
            return f"{nbytes / size:.2f} {unit}"
    return f"{nbytes} bytes"


def short_size(nbytes: int) -> str:
    """Return a size in three digits and a unit, powers of 1024: "1.5 GiB", "2 MiB", "512 B"."""
    amount, unit = float(nbytes), 0
    while amount >= 1000 and unit < len(_UNITS) - 1:
        amount, unit = amount / 1024, unit + 1
    return f"{nbytes} B" if unit == 0 else f"{amount:.3g} {_UNITS[unit]}"


def duration(seconds: float) -> str:
    """Return a time as "0.4 s", "2:05" (minutes), "1:00:09" or, from 48 hours on, "3 d 4 h"."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours >= 48:
        return f"{hours // 24} d {hours % 24} h"
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def exact_size(nbytes: int) -> str:
    """Return a size as settings are written: "4G", "512M", or "1000" where no unit is whole."""
    for unit, worth in _SIZES:
        if nbytes >= worth and nbytes % worth == 0:
            return f"{nbytes // worth}{unit}"
    return str(nbytes)


def exact_time(seconds: float) -> str:
    """Return a time as settings are written: "7d", "2h", "90", or "0.25"."""
    for unit, worth in _TIMES:
        if seconds >= worth and seconds % worth == 0:
            return f"{seconds / worth:.15g}{unit}"
    return f"{seconds:.9f}".rstrip("0").rstrip(".")
