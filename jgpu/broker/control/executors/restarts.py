"""When to start an executor that ended again. Pure: time is an argument.

The first restart is immediate, those that follow soon after wait a little longer each time; one
too many within the window means that starting again does not help, and a long pause follows.
"""

from collections import deque
from dataclasses import dataclass, field

__all__ = ["Restarts"]

_FIRST_DELAY_S = 0.25
_LONGEST_DELAY_S = 10.0


@dataclass(slots=True)
class Restarts:
    """The ends of one executor's processes."""

    limit: int
    window_s: float
    #: times of the ends within the window, oldest first
    _ends: deque[float] = field(default_factory=deque)
    #: all ends ever
    count: int = 0

    def ended(self, now: float, *, blamed: bool = False) -> float | None:
        """Seconds to wait before the next start; None: too often, give up for a while.

        An end that one user is to blame for says nothing of the device: it is made good at once.
        """
        self.count += 1
        if blamed:
            return 0.0
        self._ends.append(now)
        while self._ends[0] < now - self.window_s:
            self._ends.popleft()
        if len(self._ends) > self.limit:
            self._ends.clear()
            return None
        if len(self._ends) == 1:
            return 0.0
        return min(_LONGEST_DELAY_S, _FIRST_DELAY_S * 2.0 ** (len(self._ends) - 2))
