"""What one visitor may see of what is on record: events, and device time by day. Pure.

Invariant: as in `views`. An event's text names nobody but whom it concerns, says the broker; here
it is shown to who may see whom it concerns, and not even then where it names another user.
"""

import re
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, time, timedelta
from itertools import pairwise
from typing import Final

from jgpu.hub.page.views import Members
from jgpu.hub.page.visitors import Visitor
from jgpu.wire.reports.records import EventReport, UsageRow

__all__ = [
    "OTHERS",
    "Plot",
    "days_back",
    "drawn",
    "events_for",
    "plot_of",
    "stretches",
    "usage_for",
]

_WORD: Final = re.compile(r"[^\s,;:()\"'=]*[^\s,;:()\"'=.]")
#: stands for all whose names the visitor may not see
OTHERS: Final = "everybody else"
#: that the broker is asked of at once: it answers with 20,000 rows at most
_MOST_DAYS: Final = 14
#: names that a plot tells apart; the rest is one
_TOLD_APART: Final = 8
_REST: Final = "the rest"


def events_for(
    visitor: Visitor, events: Iterable[EventReport], members: Members
) -> list[EventReport]:
    """What happened, as far as the visitor may know it."""
    if visitor.administers:
        return list(events)
    if visitor.reads:
        return [
            EventReport(
                id=each.id, when=each.when, who=each.who, door=each.door, kind=each.kind,
                about=each.about, text=each.text,
            )
            for each in events
        ]  # fmt: skip
    seen = [_event(visitor, each, members) for each in events]
    return [each for each in seen if each.who or each.about]


def _event(visitor: Visitor, event: EventReport, members: Members) -> EventReport:
    def may_see(name: str) -> bool:
        kind, colon, rest = name.partition(":")
        if colon and kind == "group":
            return rest in visitor.tutors
        user = rest if colon and kind == "user" else name
        return visitor.sees(user, members.get(user, ()))

    about = event.about if may_see(event.about) else ""
    return EventReport(
        id=event.id,
        when=event.when,
        who=event.who if may_see(event.who) else "",
        kind=event.kind,
        about=about,
        text=event.text if about and all(map(may_see, _named(event.text, members))) else "",
    )


def _named(text: str, members: Members) -> set[str]:
    """Users that the broker knows and a text names."""
    return {word for word in _WORD.findall(text) if word in members}


def days_back(days: int, now: float) -> list[float]:
    """When each of so many days begins by this host's clock, and when today, the last one, ends.

    A day has 23 or 25 hours where clocks are changed.
    """
    first = datetime.fromtimestamp(now).date() - timedelta(days=days - 1)
    return [
        datetime.combine(first + timedelta(days=day), time()).timestamp() for day in range(days + 1)
    ]


def stretches(edges: Sequence[float]) -> list[tuple[float, float, float]]:
    """Begin, end and length of a day of each run of days that are equally long.

    None is longer than what the broker answers of a few hundred users at once.
    """
    found: list[tuple[float, float, float]] = []
    for begin, end in pairwise(edges):
        since, _, step = found[-1] if found else (begin, begin, 0.0)
        if end - begin == step and end - since <= _MOST_DAYS * step:
            found[-1] = since, end, step
        else:
            found.append((begin, end, end - begin))
    return found


def usage_for(
    visitor: Visitor, rows: Iterable[UsageRow], members: Members, by: str
) -> list[UsageRow]:
    """Device time by day, that of all whom the visitor may not see as one's.

    `rows` are users', but for whoever sees everybody. Whoever is in several groups that the visitor
    may see counts in each, and everybody else once.
    """
    if visitor.reads:
        return list(rows)
    sums: dict[tuple[float, str], float] = {}
    for row in rows:
        groups = members.get(row.name, ())
        if by == "group":
            names = [group for group in groups if group in visitor.tutors]
        else:
            names = [row.name] if visitor.sees(row.name, groups) else []
        for name in names or [OTHERS]:
            key = row.start, name
            sums[key] = sums.get(key, 0.0) + row.device_seconds
    return [
        UsageRow(start=start, name=name, device_seconds=used)
        for (start, name), used in sorted(sums.items())
    ]


@dataclass(frozen=True, slots=True)
class Plot:
    """Device time by day and name, those with most first."""

    #: when each day begins
    days: list[float]
    #: name, seconds of each day, and their sum
    series: list[tuple[str, list[float], float]]
    #: of these, how many are told apart in the picture
    told_apart: int
    total: float


def plot_of(rows: Iterable[UsageRow], edges: Sequence[float]) -> Plot:
    """A picture of these rows, a column for each of the days that `days_back` gave."""
    days = len(edges) - 1
    by_name: dict[str, list[float]] = {}
    for row in rows:
        day = bisect_right(edges, row.start) - 1
        if 0 <= day < days:
            by_name.setdefault(row.name, [0.0] * days)[day] += row.device_seconds
    series = sorted(
        ((name or "without a group", values, sum(values)) for name, values in by_name.items()),
        key=lambda each: (-each[2], each[0]),
    )
    return Plot(
        days=list(edges[:-1]),
        series=series,
        told_apart=min(len(series), _TOLD_APART),
        total=sum(each[2] for each in series),
    )


def drawn(plot: Plot) -> dict[str, object]:
    """What the picture is drawn from: the first few names, and the rest as one."""
    shown = [(name, values) for name, values, _ in plot.series[: plot.told_apart]]
    rest = [values for _, values, _ in plot.series[plot.told_apart :]]
    if rest:
        shown.append((_REST, [sum(day) for day in zip(*rest, strict=True)]))
    return {
        "days": plot.days,
        "names": [name for name, _ in shown],
        "hours": [[round(value / 3600, 4) for value in values] for _, values in shown],
    }
