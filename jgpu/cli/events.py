"""Show what happened: refusals, faults, spills, changes of quotas and policy, and who did it.

The newest come last. Whoever is no administrator sees what concerns them, without others' names.
"""

import argparse
import time
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import msgspec

from jgpu.wire import address, asking, limits
from jgpu.wire.messages import AskEvents, EventsAre
from jgpu.wire.reports.records import EventReport, EventsReport, decode_events

if TYPE_CHECKING:
    from rich.console import RenderableType

__all__ = ["ask_events", "main"]


def main(arguments: Sequence[str]) -> int:
    """`jgpu events [--json] [--user NAME] [--number N]`."""
    parser = argparse.ArgumentParser(prog="jgpu events", description=__doc__)
    parser.add_argument("--json", action="store_true", help="all there is of each, for programs")
    parser.add_argument("--user", default="", metavar="NAME", help="what concerns this user alone")
    parser.add_argument(
        "-n", "--number", type=_number, default=50, metavar="N", help="how many (default: 50)"
    )
    options = parser.parse_args(arguments)
    found = ask_events(address.find_for_administration(), options.number, options.user)
    if options.json:
        print(msgspec.json.format(msgspec.json.encode(found), indent=2).decode())
        return 0
    from jgpu import terminal

    terminal.console().print(_table(reversed(found.events)))
    if found.note:
        print(found.note)
    return 0


def ask_events(where: address.Address, number: int, user: str = "") -> EventsReport:
    """The newest events, so many if there are as many; raises as `jgpu.wire.asking.ask` does."""
    events: list[EventReport] = []
    while True:
        asked = min(number - len(events), limits.MAX_EVENTS)
        before = events[-1].id if events else 0
        reply = asking.ask_for(where, AskEvents(before, asked, user), EventsAre)
        report = decode_events(reply.json, where)
        events += report.events
        if len(report.events) < asked or len(events) >= number:
            return EventsReport(events=tuple(events), note=report.note)


def _table(events: Iterable[EventReport]) -> "RenderableType":
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for column in ("WHEN", "KIND", "WHO", "ABOUT", "WHAT"):
        table.add_column(column, overflow="fold" if column == "WHAT" else "ellipsis")
    for event in events:
        when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(event.when))
        # Names and texts come from users: they are never markup.
        row = (when, event.kind, event.who or "the broker", event.about, event.text)
        table.add_row(*map(Text, row))
    return table if table.row_count else "Nothing is on record."


def _number(text: str) -> int:
    if not (text.isascii() and text.isdigit() and 1 <= int(text[:9]) <= 100_000):
        raise argparse.ArgumentTypeError(f"{text!r} is no number from 1 to 100000.")
    return int(text)
