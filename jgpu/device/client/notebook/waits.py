"""A cell that waits for others is told so, once, when it has waited for a while.

The broker says soon that the session waits, for memory or its turn, and for which users. Most waits
are over before anybody could read a sentence; one that lasts is written to the cell's error stream.
Names are left to `jgpu status`, which knows who may see them.

A wait is never longer for being told.
"""

from collections.abc import Callable
from time import monotonic
from typing import Final

__all__ = ["Waits"]

#: seconds of waiting before it is said, and between two sentences where no new cell begins
_PATIENCE_S: Final = 2.0
_AGAIN_S: Final = 60.0
_LONG_S: Final = 3600.0


class Waits:
    """Whether there is something to say."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._users: tuple[str, ...] = ()
        self._say_at: float | None = None
        self._quiet_until = 0.0

    def begun(self, users: tuple[str, ...]) -> None:
        """The broker says that the session waits for these users."""
        self._users = users
        now = self._clock()
        if now >= self._quiet_until:
            self._say_at = now + _PATIENCE_S

    def over(self) -> None:
        """The answer is there."""
        self._say_at = None

    def forget(self) -> None:
        """A new cell begins, which is told anew."""
        self._say_at, self._quiet_until = None, 0.0

    def timeout_s(self) -> float:
        """How long nothing needs to be said."""
        return _LONG_S if self._say_at is None else max(0.0, self._say_at - self._clock())

    def sentence(self) -> str:
        """What is to be said now, "" for nothing."""
        if self._say_at is None or (now := self._clock()) < self._say_at:
            return ""
        self._say_at, self._quiet_until = None, now + _AGAIN_S
        count = len(self._users)
        users = "1 user" if count == 1 else f"{count} users"
        return (
            f"waiting for memory or a turn on the shared device, behind {users} "
            "(`jgpu status` shows more)."
        )
