"""What is counted for monitoring from one report of the broker to the next. Pure.

A report says what is; histograms need what was. Waits and iterations are counted as reports show
them: ten a second at most, so of a wait that came and went in between nothing is seen, and
iterations of one session between two reports count with their mean.
"""

from bisect import bisect_left
from collections.abc import Iterable
from typing import Final

from jgpu.wire.records import EventReport
from jgpu.wire.report import Report, SessionReport

__all__ = ["KINDS", "Figures", "Histogram"]

_WAITS_S: Final = (0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1000.0)
_ITERATIONS_S: Final = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)
#: kinds of events that are counted
KINDS: Final = ("refusal", "fault", "spill", "evict", "budget", "ticket")


class Histogram:
    """Numbers by size."""

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def add(self, value: float, times: int = 1) -> None:
        """Count a value so many times."""
        self._counts[bisect_left(self._bounds, value)] += times
        self.sum += value * times

    @property
    def buckets(self) -> list[tuple[str, float]]:
        """Bounds as text, with how many values are not above each."""
        found, below = [], 0
        names = [f"{bound:g}" for bound in self._bounds] + ["+Inf"]
        for name, count in zip(names, self._counts, strict=True):
            below += count
            found.append((name, float(below)))
        return found


class Figures:
    """Everything that is counted; of sessions that are there only."""

    def __init__(self) -> None:
        self.waits = Histogram(_WAITS_S)
        self.iterations = Histogram(_ITERATIONS_S)
        self.events = dict.fromkeys(KINDS, 0)
        #: session -> its last row, and since when it waits (0: it does not)
        self._sessions: dict[int, tuple[SessionReport, float]] = {}
        #: the number of the newest event that was counted; None before the first
        self._newest: int | None = None

    def take(self, report: Report, now: float) -> None:
        """Count what is different from the report before."""
        rows: dict[int, tuple[SessionReport, float]] = {}
        for row in report.sessions:
            before, waits_since = self._sessions.get(row.id, (row, 0.0))
            if row.state == "waiting":
                waits_since = waits_since or now
            elif waits_since:
                self.waits.add(max(0.0, now - waits_since))
                waits_since = 0.0
            self._count_iterations(before, row)
            rows[row.id] = row, waits_since
        self._sessions = rows

    def _count_iterations(self, before: SessionReport, row: SessionReport) -> None:
        count = row.iterations - before.iterations
        used = row.device_seconds - before.device_seconds
        if count > 0 and used >= 0:
            self.iterations.add(used / count, count)

    def take_events(self, events: Iterable[EventReport]) -> None:
        """Count events that are newer than those before; the first time only remember where."""
        rows = list(events)
        newest = max((each.id for each in rows), default=0)
        if self._newest is not None:
            for each in rows:
                if each.id > self._newest and each.kind in self.events:
                    self.events[each.kind] += 1
        self._newest = max(newest, self._newest or 0)

    @property
    def newest(self) -> int | None:
        """The number of the newest event that was counted."""
        return self._newest
