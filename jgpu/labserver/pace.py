"""How often a page is told what: at once what a person waits for, seldom what merely grows.

Messages are spaced by their size, so that a page gets some bytes per second at most however many
kernels there are, and each change all the same soon. Pure.
"""

from collections.abc import Mapping
from typing import Any, Final

__all__ = ["GROWING", "Pace", "urgent"]

#: what only shows that work goes on
GROWING: Final = frozenset(
    {
        "cell_seconds",
        "cells",
        "device_seconds",
        "held",
        "iteration_seconds",
        "iterations",
        "kept",
        "model",
        "resident",
        "spent",
        "spilled",
        "used",
    }
)
#: states in which nothing grows: its figures are the last for now
_AT_REST: Final = frozenset({"idle", "spilled", "lost"})
#: between two messages at least
_LEAST_S: Final = 0.2
#: between two messages with what grows
_GROWS_S: Final = 2.0
#: of the messages on average, and how much may come at once
_BYTES_PER_S: Final = 8000
_BURST_BYTES: Final = 4000


def urgent(shown: Mapping[str, Any], newest: Mapping[str, Any]) -> dict[str, Any]:
    """The newest state, but what merely grew as it was shown.

    A kernel that came to rest, or to another cell, is shown as it is now.
    """
    made: dict[str, Any] = {}
    for key, value in newest.items():
        known = shown.get(key)
        if key in GROWING and key in shown:
            made[key] = known
        elif isinstance(value, dict) and isinstance(known, dict) and not _is_settled(known, value):
            made[key] = urgent(known, value)
        else:
            made[key] = value
    return made


def _is_settled(shown: Mapping[str, Any], newest: Mapping[str, Any]) -> bool:
    """Whether an object is a kernel whose figures a person looks at now."""
    if shown.get("cell") != newest.get("cell"):
        return True
    if shown.get("cells", {}).keys() != newest.get("cells", {}).keys():
        return True  # a cell that began and ended since
    state = newest.get("state")
    return state in _AT_REST and shown.get("state") != state


class Pace:
    """When the next message may go, and what it shows."""

    def __init__(self) -> None:
        #: when the bytes that were sent are paid for
        self._paid = float("-inf")
        self._last = float("-inf")
        self._grew = float("-inf")

    def next(self) -> float:
        """When a change may be told."""
        return max(self._last + _LEAST_S, self._paid - _BURST_BYTES / _BYTES_PER_S)

    def next_growth(self) -> float:
        """When what merely grew may be told, too."""
        return max(self.next(), self._grew + _GROWS_S)

    def choose(
        self, shown: Mapping[str, Any], newest: Mapping[str, Any], now: float
    ) -> dict[str, Any]:
        """What is to be shown now."""
        if now >= self.next_growth():
            self._grew = now
            return dict(newest)
        return urgent(shown, newest)

    def told(self, nbytes: int, now: float) -> None:
        """A message of so many bytes went."""
        self._last = now
        self._paid = max(self._paid, now) + nbytes / _BYTES_PER_S
