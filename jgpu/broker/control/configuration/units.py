"""Traits with units, so that a configuration reads as people write: 2G, not 2147483648."""

from __future__ import annotations

from typing import Any

from traitlets import Float, TraitError

from jgpu.wire.sizes import parse_bytes, parse_seconds

__all__ = ["Bytes", "Seconds"]


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
