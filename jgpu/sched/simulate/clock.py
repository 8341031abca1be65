"""The virtual clock: what is due when, in order.

The rule: of two things due at the same moment, the one that was asked for first happens first, so
that a run depends on its input alone.
"""

from __future__ import annotations

from heapq import heappop, heappush
from itertools import count
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Clock"]


class Clock:
    """Virtual seconds, and what will happen in them."""

    def __init__(self) -> None:
        #: seconds since the beginning; never falls
        self.now = 0.0
        self._due: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._order = count()

    def at(self, when: float, call: Callable[..., None], *arguments: Any) -> None:
        """Have something called at a moment; at once where that has passed."""
        heappush(self._due, (max(when, self.now), next(self._order), call, arguments))

    def after(self, seconds: float, call: Callable[..., None], *arguments: Any) -> None:
        """Have something called so many seconds from now."""
        self.at(self.now + seconds, call, *arguments)

    def run(self, until: float = float("inf")) -> None:
        """Let time pass until nothing is due any more, or up to `until`."""
        while self._due and self._due[0][0] <= until:
            self.now, _, call, arguments = heappop(self._due)
            call(*arguments)
        if until < float("inf"):
            self.now = max(self.now, until)
