"""Sizes and times: what people read of them, and what is read of what people write.

A size is told in three digits and a unit, as on the pages of JupyterLab. As settings are written it
is exact; only what stands where torch would say it says it in torch's manner.
"""

from __future__ import annotations

import re
from typing import Final

__all__ = [
    "duration",
    "exact_size",
    "exact_time",
    "parse_bytes",
    "parse_seconds",
    "short_size",
    "torch_size",
]

_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB")
_SIZES: Final = (("T", 1 << 40), ("G", 1 << 30), ("M", 1 << 20), ("K", 1 << 10))
_TIMES: Final = (("d", 86400), ("h", 3600), ("m", 60))
_SIZE: Final = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]?)(?:i?B)?\s*", re.ASCII | re.IGNORECASE)
_TIME: Final = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([smhd]?)\s*", re.ASCII)
#: digits of a number that is read; more of them would be no float
_MOST_DIGITS: Final = 300


def torch_size(nbytes: int) -> str:
    """Return a size as torch's messages have it: "1.50 GiB", "2.00 MiB" or "512 bytes"."""
    for unit, size in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if nbytes >= size:
            return f"{nbytes / size:.2f} {unit}"
    return f"{nbytes} bytes"


def short_size(nbytes: int) -> str:
    """Return a size in three digits and a unit, powers of 1024: "1.5 GiB", "2 MiB", "512 B".

    What is just short of the next unit is one of it: 1000 MiB are "1 GiB".
    """
    amount, unit = float(nbytes), 0
    while amount >= 1000 and unit < len(_UNITS) - 1:
        amount, unit = amount / 1024, unit + 1
    if unit == 0:
        return f"{nbytes} B"
    told = float(f"{amount:.{3 if amount >= 1 else 1}g}")
    return f"{told:.15g} {_UNITS[unit]}"


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


def parse_bytes(text: str) -> int:
    """Return the bytes in "512M", "2G", "1.5 GiB" or "1000"; K, M, G, T are powers of 1024."""
    match = _SIZE.fullmatch(text[:_MOST_DIGITS])
    if match is None or len(text) > _MOST_DIGITS:
        raise ValueError(f"{text!r} is no size; write it like 512M or 2G.")
    return int(float(match[1]) * dict(_SIZES).get(match[2].upper(), 1))


def parse_seconds(text: str) -> float:
    """Return the seconds in "90", "90s", "15m", "2h" or "7d"."""
    match = _TIME.fullmatch(text[:_MOST_DIGITS])
    if match is None or len(text) > _MOST_DIGITS:
        raise ValueError(f"{text!r} is no time; write it like 90, 15m, 2h or 7d.")
    return float(match[1]) * dict(_TIMES).get(match[2], 1)
