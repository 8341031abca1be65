"""Traits with units, so that a configuration reads as people write: 2G, not 2147483648."""

from __future__ import annotations

import re
from typing import Any, Final

from traitlets import Float, TraitError

__all__ = ["Bytes", "Seconds", "parse_bytes", "parse_seconds"]

_FACTORS: Final = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_SIZE: Final = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]?)(?:i?B)?\s*", re.IGNORECASE)
_UNITS: Final = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_TIME: Final = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([smhd]?)\s*")


def parse_bytes(text: str) -> int:
    """Bytes in "512M", "2G", "1.5 GiB" or "1000"; K, M, G, T are powers of 1024."""
    match = _SIZE.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is no size; write it like 512M or 2G.")
    return int(float(match[1]) * _FACTORS[match[2].upper()])


def parse_seconds(text: str) -> float:
    """Seconds in "90", "90s", "15m", "2h" or "7d"."""
    match = _TIME.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is no time; write it like 90, 15m, 2h or 7d.")
    return float(match[1]) * _UNITS[match[2]]


class Bytes(Float[Any, Any]):
    """A number of bytes, given as an integer or as text with a unit."""

    def validate(self, obj: Any, value: Any) -> Any:
        """Whole bytes."""
        if isinstance(value, str):
            try:
                return parse_bytes(value)
            except ValueError as error:
                raise TraitError(f"{self.name}: {error}") from None
        if isinstance(value, bool) or not isinstance(value, int | float) or value < 0:
            raise TraitError(f"{self.name}: {value!r} is no size; write it like '512M' or '2G'.")
        return int(value)

    def from_string(self, s: str) -> Any:
        """What the command line gives."""
        return s


class Seconds(Float[Any, Any]):
    """A time in seconds, given as a number or as text such as "90", "90s", "15m", "2h", "7d"."""

    def validate(self, obj: Any, value: Any) -> Any:
        """Seconds, not negative."""
        if isinstance(value, str):
            try:
                return parse_seconds(value)
            except ValueError as error:
                raise TraitError(f"{self.name}: {error}") from None
        if isinstance(value, bool) or not isinstance(value, int | float) or value < 0:
            raise TraitError(f"{self.name}: {value!r} is no time; write it like 90 or '15m'.")
        return float(value)

    def from_string(self, s: str) -> Any:
        """What the command line gives."""
        return s
