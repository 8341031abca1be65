"""JSON merge patches (RFC 7396): what makes one state of another.

In a patch `null` removes a key, so a state has none: what is not known is not there.

Invariant: what the standard makes of `before` by `patch(before, after)` is `after`, for all objects
without null.
"""

from collections.abc import Mapping
from typing import Any, Final

__all__ = ["patch", "without_nulls"]

_NOTHING: Final = object()


def patch(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Any]:
    """Return the smallest patch; empty where nothing is different."""
    found: dict[str, Any] = {}
    for key, value in after.items():
        known = before.get(key, _NOTHING)
        if known is value:
            continue
        if isinstance(value, dict) and isinstance(known, dict):
            if inner := patch(known, value):
                found[key] = inner
        elif known != value or _is_bool(known) != _is_bool(value):
            found[key] = value
    found.update(dict.fromkeys(before.keys() - after.keys()))
    return found


def without_nulls(values: Mapping[str, Any]) -> dict[str, Any]:
    """An object without the keys that have no value."""
    return {key: value for key, value in values.items() if value is not None}


def _is_bool(value: Any) -> bool:
    """1 and true are the same for Python alone."""
    return value is True or value is False
