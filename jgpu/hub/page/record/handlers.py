"""The views "Usage" and "Events": what the broker has on record."""

import json
import time
from collections.abc import Iterable
from typing import Final, Literal

from tornado.web import HTTPError

from jgpu.errors import JgpuError
from jgpu.hub.page.base import Base
from jgpu.hub.page.people.classlist import csv_row
from jgpu.hub.page.record.values import days_back, drawn, events_for, plot_of, stretches, usage_for
from jgpu.wire.limits import MAX_EVENTS
from jgpu.wire.messages import AskEvents, AskUsage
from jgpu.wire.reports.records import (
    EVENT_KINDS,
    EventReport,
    UsageRow,
    decode_events,
    decode_usage,
)

__all__ = ["Events", "UsageList", "UsageView"]

#: days of one picture
_CHOICES: Final = (7, 14, 30, 90)
_IN_PART: Final = "The record cannot be read, or not all of it, just now."
#: events of one page, and questions to the broker until there are so many
_PAGE: Final = 100
_ASKED: Final = 5


class _FromRecord(Base):
    """A view of what is on record."""

    by: Literal["user", "group"]

    async def usage(self) -> tuple[list[UsageRow], list[float], str]:
        """Rows that the visitor may see, when their days begin and end, and what is missing."""
        days = self._number("days", 14, 366)
        by_group = self.get_query_argument("by", "") == "group" and self.visitor.sees_others
        self.by = "group" if by_group else "user"
        # Sums of groups cannot be put together to one of everybody else.
        asked = self.by if self.visitor.reads else "user"
        edges = days_back(days, time.time())
        await self._groups()
        found: list[UsageRow] = []
        notes: dict[str, None] = {}
        for since, until, step in stretches(edges):
            try:
                reply = await self.link.ask(AskUsage(since, until, step, asked))
                report = decode_usage(reply.json)
            except JgpuError as error:
                raise HTTPError(503, "%s", str(error)) from None
            found += report.rows
            notes[report.note] = None
        rows = usage_for(self.visitor, found, self.link.members, self.by)
        return rows, edges, self.told(" ".join(filter(None, notes)))

    def told(self, note: str) -> str:
        """What is said of a record that cannot be read; where it lies, administrators alone see."""
        return _IN_PART if note and not self.visitor.administers else note

    async def _groups(self) -> None:
        """Know who is in which group also of those who are not here."""
        try:
            await self.link.quotas()
        except JgpuError as error:
            raise HTTPError(503, "%s", str(error)) from None

    def _number(self, name: str, default: int, most: int) -> int:
        text = self.get_query_argument(name, "") or str(default)
        if not (text.isascii() and text.isdigit() and len(text) < 20):
            raise HTTPError(400, "%s has to be a number.", name)
        return max(1, min(int(text), most))


class UsageView(_FromRecord):
    """Device time by user or group, and day."""

    async def get(self) -> None:
        """A picture and the same as a table."""
        rows, edges, note = await self.usage()
        plot = plot_of(rows, edges)
        self.page(
            "usage.html",
            plot=plot,
            drawn=json.dumps(drawn(plot)),
            by=self.by,
            days=len(plot.days),
            choices=_CHOICES,
            note=note,
        )


class UsageList(_FromRecord):
    """The same as a CSV."""

    async def get(self) -> None:
        """A row for each day and name, and nothing where any of them is missing."""
        rows, _, note = await self.usage()
        if note:
            raise HTTPError(503, "%s", note)
        self.send_csv(f"jgpu-usage-by-{self.by}", _lines(self.by, rows))


class Events(_FromRecord):
    """What happened, who did it, and when."""

    #: why older ones are missing; empty where none are
    _note = ""

    async def get(self) -> None:
        """The newest first, or those before one of them."""
        before = self._number("before", 0, 1 << 62) if self.get_query_argument("before", "") else 0
        kind = self.get_query_argument("kind", "")
        await self._groups()
        found, more = await self._found(before, kind)
        self.page(
            "events_table.html" if self.is_fragment else "events.html",
            events=found,
            kinds=EVENT_KINDS,
            kind=kind,
            more=more,
            note=self.told(self._note),
        )

    async def _found(self, before: int, kind: str) -> tuple[list[EventReport], int]:
        """Events that the visitor may see, and the number that older ones are below; 0: none."""
        alone = "" if self.visitor.sees_others else self.visitor.name
        found: list[EventReport] = []
        for _ in range(_ASKED):
            rows = await self._ask(before, alone)
            shown = events_for(self.visitor, rows, self.link.members)
            found += [each for each in shown if kind in ("", each.kind)]
            before = rows[-1].id if rows else 0
            if len(rows) < MAX_EVENTS:
                before = 0
            if not before or len(found) >= _PAGE:
                break
        if len(found) > _PAGE:
            found = found[:_PAGE]
            before = found[-1].id
        return found, before

    async def _ask(self, before: int, user: str) -> tuple[EventReport, ...]:
        if not self.visitor.name and not self.visitor.sees_others:
            return ()
        try:
            reply = await self.link.ask(AskEvents(before, MAX_EVENTS, user))
            report = decode_events(reply.json)
        except JgpuError as error:
            raise HTTPError(503, "%s", str(error)) from None
        self._note = report.note
        return report.events


def _lines(by: str, rows: Iterable[UsageRow]) -> Iterable[str]:
    yield f"day,{by},device_seconds\r\n"
    for row in rows:
        day = time.strftime("%Y-%m-%d", time.localtime(row.start))
        yield csv_row([day, row.name, f"{row.device_seconds:.3f}"])
