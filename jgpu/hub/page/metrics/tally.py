"""Events by kind since the page began: the broker keeps a record of them and counts none. Pure."""

from collections.abc import Iterable

from jgpu.wire.reports.records import EVENT_KINDS, EventReport

__all__ = ["Tally"]


class Tally:
    """How many events there were of each kind."""

    def __init__(self) -> None:
        self.counts = dict.fromkeys(EVENT_KINDS, 0)
        #: the number of the newest event that was counted; None before the first
        self.newest: int | None = None

    def take(self, events: Iterable[EventReport]) -> None:
        """Count events that are newer than those before; the first time only remember where."""
        before, rows = self.newest, list(events)
        self.newest = max([before or 0, *(each.id for each in rows)])
        if before is None:
            return
        for each in rows:
            if each.id > before and each.kind in self.counts:
                self.counts[each.kind] += 1
