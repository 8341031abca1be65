"""Moments as people read them, and how a quota's values are written."""

import time
from typing import Any, Final

from jgpu.wire.sizes import exact_size, exact_time

__all__ = ["iso", "moment", "second", "setting"]

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
        return exact_size(int(value))
    if name in ("device_seconds", "period"):
        return exact_time(float(value))
    return f"{value:.15g}" if isinstance(value, float) else str(value)
