"""Answers `jgpu events` and `jgpu usage` from the ledger, each asker what they may see.

Invariant: whoever is no administrator sees events that concern them and their own usage, and no
other user's name.
"""

import math
from collections import defaultdict
from collections.abc import Iterable
from typing import Final

from msgspec.structs import replace

from jgpu.broker.control.quotas.desk import QuotaService
from jgpu.broker.control.quotas.ledger.problems import LedgerProblem
from jgpu.broker.control.reports.report import Viewer
from jgpu.errors import BrokerRefused
from jgpu.wire.messages import AskEvents, AskUsage
from jgpu.wire.reports.records import EventReport, EventsReport, UsageReport, UsageRow
from jgpu.wire.reports.report import SOMEBODY

__all__ = ["Records"]

#: steps that one question may be about, and rows of its answer
_MOST_STEPS: Final = 1000
_MOST_ROWS: Final = 20_000
#: seconds since the epoch, by the year 9999
_LATEST: Final = 253_402_300_800.0
_ADMINISTRATOR: Final = "an administrator"
_OTHERS: Final = "This concerned another user."


class Records:
    """The two requests; both raise errors whose sentence is for the asker."""

    def __init__(self, desk: QuotaService) -> None:
        self._desk = desk

    async def events(self, request: AskEvents, viewer: Viewer) -> EventsReport:
        """The newest first; while the ledger cannot be read those that wait to be written."""
        user = request.user if viewer.administrator else viewer.user
        if request.user and not viewer.sees(request.user):
            raise BrokerRefused(
                f"You are {viewer.user}; only an administrator sees what concerns others."
            )
        note = ""
        try:
            found = await self._desk.ledger.read(
                lambda store: store.events(request.before, request.limit, user)
            )
        except LedgerProblem as error:
            note = f"Older events cannot be read just now. {error if viewer.administrator else ''}"
            found = [
                event
                for event in reversed(self._desk.ledger.unwritten_events)
                if (not request.before or event.id < request.before)
                and (not user or user in (event.who, event.about))
            ][: request.limit]
        seen = tuple(_seen(event, viewer) for event in found)
        return EventsReport(events=seen, note=note.strip())

    async def usage(self, request: AskUsage, viewer: Viewer) -> UsageReport:
        """By step and name; groups are those that users are in now."""
        since, until, step = _span(request)
        user = "" if viewer.administrator else viewer.user
        try:
            found = await self._desk.ledger.read(
                lambda store: store.usage(since, until, step, user, _MOST_ROWS + 1)
            )
        except LedgerProblem as error:
            said = str(error) if viewer.administrator else ""
            return UsageReport(note=f"Usage cannot be read just now. {said}".strip())
        note = ""
        if len(found) > _MOST_ROWS:
            found, note = found[:_MOST_ROWS], "There is more; ask for longer steps or less time."
        if request.by == "group":
            found = await self._by_group(found)
        return UsageReport(
            rows=tuple(
                UsageRow(start=float(since + number * step), name=name, device_seconds=seconds)
                for number, name, seconds in found
            ),
            note=note,
        )

    async def _by_group(
        self, rows: Iterable[tuple[int, str, float]]
    ) -> list[tuple[int, str, float]]:
        """Whoever is in several counts for each, and whoever is in none for none."""
        groups: dict[str, tuple[str, ...]] = {}
        sums: defaultdict[tuple[int, str], float] = defaultdict(float)
        for number, user, seconds in rows:
            if user not in groups:
                await self._desk.look_up(user)
                groups[user] = tuple(self._desk.groups.of(user)) or ("",)
            for group in groups[user]:
                sums[number, group] += seconds
        return [(number, group, seconds) for (number, group), seconds in sorted(sums.items())]


def _seen(event: EventReport, viewer: Viewer) -> EventReport:
    """The event as the viewer may see it."""
    if viewer.administrator:
        return event
    who = event.who
    if who and not viewer.sees(who):
        who = _ADMINISTRATOR if event.door in ("administrators", "owner") else SOMEBODY
    if not event.about or viewer.sees(event.about):
        return replace(event, who=who, identity="")
    # Who comes by the users' door is no administrator, though their uid did it as one.
    named = (event.about.partition(":")[2] or event.about) in event.text
    return replace(
        event, who=who, about=SOMEBODY, identity="", text=_OTHERS if named else event.text
    )


def _span(request: AskUsage) -> tuple[int, int, int]:
    """Begin, end and step in whole seconds; raises `BrokerRefused` for what is none."""
    since, until, step = request.since, request.until, request.step
    if not (0 <= since < until <= _LATEST and math.isfinite(step)):
        raise BrokerRefused("Usage is asked for from one time until a later one.")
    if (until - since) / step > _MOST_STEPS:
        raise BrokerRefused(
            f"That are {(until - since) / step:.0f} steps; ask for {_MOST_STEPS} at most."
        )
    return int(since), math.ceil(until), int(step)
