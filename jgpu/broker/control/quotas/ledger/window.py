"""What was used within the last so many seconds, in cells of a hundred-and-twenty-eighth of them.

A rolling window, not a calendar day: nobody gains by waiting for midnight, and nobody loses a whole
day at once. Pure: time is an argument, in seconds since the epoch.

Invariant: what was used within the period is counted, all of it. A cell leaves as a whole, when
even its youngest second is older than the period, so that up to one cell more may count and never
less.
"""

import math
from collections.abc import Iterable
from typing import Final

__all__ = ["Window"]

_CELLS: Final = 128


class Window:
    """One user's use of a rolling period."""

    def __init__(self, period_s: float) -> None:
        assert period_s > 0
        self.period_s = period_s
        #: length of a cell, in seconds
        self.cell_s = period_s / _CELLS
        #: device-seconds by the number of the cell they were used in; none of them 0
        self._cells: dict[int, float] = {}

    def add(self, seconds: float, at: float) -> None:
        """Seconds were used until `at`."""
        if seconds > 0:
            cell = math.floor(at / self.cell_s)
            self._cells[cell] = self._cells.get(cell, 0.0) + seconds

    def used(self, now: float) -> float:
        """Device-seconds of the last period."""
        self._forget(now)
        return math.fsum(self._cells.values())

    def below_at(self, budget_s: float, now: float) -> float:
        """The time at which less than the budget will have been used, if nothing is used more."""
        if self.used(now) < budget_s:
            return now
        cells = sorted(self._cells)
        for place, cell in enumerate(cells, 1):
            if math.fsum(self._cells[later] for later in cells[place:]) < budget_s:
                return self._end(cell)
        raise AssertionError("a budget is above 0")

    def entries(self) -> list[tuple[float, float]]:
        """What is counted: the end of each cell, and its seconds."""
        return [((cell + 1) * self.cell_s, used) for cell, used in sorted(self._cells.items())]

    def resized(self, period_s: float, older: Iterable[tuple[float, float]] = ()) -> "Window":
        """A window of another period with what this one holds.

        `older` (end, seconds) is what is known of the time before this window's.
        """
        made = Window(period_s)
        entries = self.entries()
        first = min((end for end, _ in entries), default=math.inf) - self.cell_s
        for end, seconds in older:
            if end <= first:
                made.add(seconds, end)
        for end, seconds in entries:
            made.add(seconds, end)
        return made

    def _end(self, cell: int) -> float:
        """When a cell counts no more."""
        return (cell + 1) * self.cell_s + self.period_s

    def _forget(self, now: float) -> None:
        for cell in [cell for cell in self._cells if self._end(cell) <= now]:
            del self._cells[cell]

    def validate(self) -> None:
        """Assert the invariants."""
        assert all(seconds > 0 for seconds in self._cells.values())
