"""Device time of a session's cells, by the names that its notebook gave them.

That is how long lanes were at what a cell sent, as the times of iterations are. A cell may end, and
the next begin, while its works still wait or run: works are numbered, and numbers grow. What is
sent between two cells is the earlier one's.
"""

from collections import deque
from typing import Final, NamedTuple

from jgpu.wire import limits

__all__ = ["CellDeviceTimes"]

#: cells that are remembered, and such that begin while works of earlier ones wait
_KEPT: Final = 16
_AHEAD: Final = 1024


class _Begun(NamedTuple):
    """A cell, and the last work that came before it."""

    name: str
    after: int


class CellDeviceTimes:
    """One session's."""

    def __init__(self) -> None:
        #: the cell whose works are being done; empty before the first
        self._name = ""
        #: cells that have begun, and whose works are not due yet
        self._next: deque[_Begun] = deque(maxlen=_AHEAD)
        #: by cell, the latest at the end
        self._seconds: dict[str, float] = {}

    def begin(self, name: str, after: int) -> None:
        """A cell begins behind the work of that number."""
        name = name[: limits.MAX_NAME]
        self._next.append(_Begun(name, after))
        self._seconds.pop(name, None)  # a cell that IPython did not count had its number

    def count(self, work: int, seconds: float) -> None:
        """The work of that number is done, and took so long."""
        while self._next and work > self._next[0].after:
            self._name = self._next.popleft().name
            self._seconds.pop(self._name, None)
        if self._name and seconds > 0.0:
            self._seconds[self._name] = self._seconds.get(self._name, 0.0) + seconds
            if len(self._seconds) > _KEPT:
                del self._seconds[next(iter(self._seconds))]

    @property
    def seconds(self) -> dict[str, float]:
        """Of the last cells that were at the device, oldest first."""
        return dict(self._seconds)
