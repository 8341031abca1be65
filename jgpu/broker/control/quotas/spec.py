"""What a quota says: shares, limits, a budget of device time, and what happens beyond it.

A `QuotaSpec` may leave fields open; a `Quota` has them all. Both are the same whether they came
from a configuration file or from `jgpu quota set`: texts and numbers are read here alone.

Invariant: no spec exists that could not be kept.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any, Final

from jgpu.errors import ConfigError
from jgpu.wire.sizes import exact_size, exact_time, parse_bytes, parse_seconds

__all__ = [
    "BUILT_IN",
    "FIELDS",
    "OVER_BUDGET",
    "PRIORITIES",
    "Quota",
    "QuotaSpec",
    "complete",
    "make_spec",
    "read_setting",
    "show",
]

#: Classes of sessions, the most urgent first; a class travels as its place here.
PRIORITIES: Final = ("interactive", "normal", "batch")
#: What may happen beyond a budget, the mildest first.
OVER_BUDGET: Final = ("warn", "throttle", "deny")

_LEAST_WEIGHT, _MOST_WEIGHT = 1e-3, 1e3
_MOST: Final = float(1 << 62)
_LONGEST_S: Final = 366 * 86400.0
#: Says that there is no limit.
_NONE: Final = ("none", "unlimited")


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaSpec:
    """What one scope says of its users; None where it says nothing, 0 where there is no limit."""

    #: share of device time relative to other users with work, 0.001 to 1000
    weight: float | None = None
    #: bytes that all sessions of a user may have on a device: models and everything else
    memory: int | None = None
    #: bytes of these that may be models and optimizers, which are never moved to the host
    resident: int | None = None
    #: device-seconds that a user may use within any period
    device_seconds: float | None = None
    #: length of the rolling period, in seconds
    period: float | None = None
    #: processes of a user that may use the device at once
    sessions: int | None = None
    #: the most urgent class that a session may ask for, and the one it has if it asks for none
    priority: str | None = None
    #: what happens beyond the device-seconds
    over_budget: str | None = None

    def __post_init__(self) -> None:
        for name, value in self.items():
            _check(name, value)
        if self.memory and self.resident and self.resident > self.memory:
            raise ConfigError(
                f"resident is {show('resident', self.resident)}, above memory, "
                f"{show('memory', self.memory)}, of which it is a part."
            )

    def items(self) -> list[tuple[str, Any]]:
        """The fields that are set, and their values."""
        return [(name, value) for name in FIELDS if (value := getattr(self, name)) is not None]

    def over(self, weaker: "QuotaSpec") -> "QuotaSpec":
        """This spec with `weaker` where this one says nothing."""
        return QuotaSpec.of_parts(dict(weaker.items()) | dict(self.items()))

    @classmethod
    def of_parts(cls, found: dict[str, Any]) -> "QuotaSpec":
        """The spec of fields that come from several; each is possible by itself."""
        if (found.get("resident") or 0) > (found.get("memory") or math.inf):
            found["resident"] = found["memory"]  # together the lower one is what counts
        return cls(**found)


@dataclass(frozen=True, slots=True, kw_only=True)
class Quota:
    """What counts for one user; 0 where there is no limit. The fields are those of `QuotaSpec`."""

    weight: float
    memory: int
    resident: int
    device_seconds: float
    period: float
    sessions: int
    priority: str
    over_budget: str

    def shown(self) -> dict[str, str]:
        """All fields as people write them."""
        return {name: show(name, getattr(self, name)) for name in FIELDS}


FIELDS: Final = tuple(field.name for field in fields(QuotaSpec))


def complete(spec: QuotaSpec) -> Quota:
    """The quota of a spec that says everything."""
    return Quota(**dict(spec.items()))


def make_spec(settings: Mapping[str, Any]) -> QuotaSpec:
    """The spec of fields as people write them; None is no limit. Raises `ConfigError`."""
    return QuotaSpec(**{name: read_setting(name, value) for name, value in settings.items()})


def read_setting(name: str, value: Any) -> Any:
    """A field's value from text ("4G", "2h", "none") or a number; raises `ConfigError`."""
    if name not in _READERS:
        raise ConfigError(f"There is no {name!r} in a quota; there is {', '.join(FIELDS)}.")
    try:
        read = _READERS[name](value)
    except (ValueError, OverflowError) as error:
        raise ConfigError(f"{name}: {error}") from None
    if name in _LIMITS and read == 0 and not _is_none(value):
        raise ConfigError(f"{name} is {value!r}; it must be above 0, or none for no limit.")
    _check(name, read)
    return read


def show(name: str, value: Any) -> str:
    """A field's value as people write it; `read_setting` reads it again."""
    if name in _LIMITS and not value:
        return "none"
    if name in ("memory", "resident"):
        return exact_size(value)
    if name in ("device_seconds", "period"):
        return exact_time(value)
    return f"{value:.15g}" if isinstance(value, float) else str(value)


# -- reading and showing ---------------------------------------------------------------------


def _is_none(value: Any) -> bool:
    return value is None or (isinstance(value, str) and value.strip().lower() in _NONE)


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise ValueError(f"{value!r} is no number.")  # noqa: TRY004 - what was written is at fault
    try:
        return float(value)
    except ValueError:
        raise ValueError(f"{value!r} is no number.") from None


def _count(value: Any) -> int:
    if _is_none(value):
        return 0
    number = _number(value)
    if not number.is_integer():
        raise ValueError(f"{value!r} is no whole number.")
    return int(number)


def _bytes(value: Any) -> int:
    if _is_none(value):
        return 0
    return parse_bytes(value) if isinstance(value, str) else _count(value)


def _seconds(value: Any) -> float:
    return parse_seconds(value) if isinstance(value, str) else _number(value)


def _budget(value: Any) -> float:
    return 0.0 if _is_none(value) else _seconds(value)


def _word(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{value!r} is no word.")  # noqa: TRY004 - as above
    return value.strip().lower()


_READERS: Final[dict[str, Callable[[Any], Any]]] = {
    "weight": _number,
    "memory": _bytes,
    "resident": _bytes,
    "device_seconds": _budget,
    "period": _seconds,
    "sessions": _count,
    "priority": _word,
    "over_budget": _word,
}
#: Fields that can be without a limit.
_LIMITS: Final = ("memory", "resident", "device_seconds", "sessions")
_CHOICES: Final = {"priority": PRIORITIES, "over_budget": OVER_BUDGET}
_BOUNDS: Final = {
    "weight": (_LEAST_WEIGHT, _MOST_WEIGHT, "from 0.001 to 1000"),
    "period": (1.0, _LONGEST_S, "from 1 second to 366 days"),
}
_LIMIT_BOUNDS: Final = (0.0, _MOST, "above 0, and not beyond all measure")


def _check(name: str, value: Any) -> None:
    """Raise `ConfigError` for a value that cannot be kept."""
    if name in _CHOICES:
        if value not in _CHOICES[name]:
            raise ConfigError(f"{name} is {value!r}; it can be {', '.join(_CHOICES[name])}.")
        return
    least, most, words = _BOUNDS.get(name, _LIMIT_BOUNDS)
    if not least <= value <= most:  # which nan never is
        raise ConfigError(f"{name} is {value!r}; it must be {words}.")


#: What counts where nobody says otherwise.
BUILT_IN: Final = QuotaSpec(
    weight=1.0,
    memory=0,
    resident=0,
    device_seconds=0.0,
    period=86400.0,
    sessions=0,
    priority="normal",
    over_budget="throttle",
)
