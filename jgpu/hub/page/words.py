"""Moments as people read them, and how a quota's values are written."""

import time
from typing import Any, Final

__all__ = ["iso", "moment", "second", "setting"]

_SIZES: Final = (("T", 1 << 40), ("G", 1 << 30), ("M", 1 << 20), ("K", 1 << 10))
_TIMES: Final = (("d", 86400), ("h", 3600), ("m", 60))
#: fields of a quota that may be without a limit
_LIMITS: Final = ("memory", "resident", "device_seconds", "sessions")


def moment(seconds: float) -> str:
    """Seconds since the epoch as this host's clock shows them."""
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(seconds))


def second(seconds: float) -> str:
    """The same to the second."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))


def iso(seconds: float) -> str:
    """The same for programs."""
    return time.strftime("%Y-%m-%dT%H:%M:%S%z", time.localtime(seconds))


def setting(name: str, value: Any) -> str:
    """A quota's value as `jgpu quota set` reads it: "4G", "2h", "none"."""
    if name in _LIMITS and not value:
        return "none"
    if name in ("memory", "resident"):
        return _with_unit(int(value), _SIZES)
    if name in ("device_seconds", "period"):
        return _with_unit(float(value), _TIMES)
    return f"{value:.15g}" if isinstance(value, float) else str(value)


def _with_unit(value: float, units: tuple[tuple[str, int], ...]) -> str:
    for unit, worth in units:
        if value >= worth and value % worth == 0:
            return f"{value / worth:.15g}{unit}"
    return f"{value:.9f}".rstrip("0").rstrip(".") if isinstance(value, float) else str(value)
