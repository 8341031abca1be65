"""Show who used how much device time, day by day.

Days are those of this machine's clock. Whoever is no administrator sees their own. Of a user who is
in several groups each has all the time.
"""

import argparse
import csv
import datetime
import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Literal

from jgpu.wire import address, asking
from jgpu.wire.messages import AskUsage, UsageIs
from jgpu.wire.reports.records import UsageReport, decode_usage

if TYPE_CHECKING:
    from rich.console import RenderableType

__all__ = ["main"]

#: day, user or group, device-seconds
_Row = tuple[datetime.date, str, float]


def main(arguments: Sequence[str]) -> int:
    """`jgpu usage [--by user|group] [--days N] [--csv]`."""
    parser = argparse.ArgumentParser(prog="jgpu usage", description=__doc__)
    parser.add_argument("--by", choices=("user", "group"), default="user", help="(default: user)")
    parser.add_argument(
        "--days", type=_days, default=7, metavar="N", help="today and those before (default: 7)"
    )
    parser.add_argument("--csv", action="store_true", help="for a spreadsheet")
    options = parser.parse_args(arguments)
    where = address.find_for_administration()
    rows: list[_Row] = []
    notes: list[str] = []
    today = datetime.date.today()
    for ago in reversed(range(options.days)):
        day = today - datetime.timedelta(days=ago)
        report = _ask(where, day, options.by)
        rows += [(day, row.name, row.device_seconds) for row in report.rows]
        notes += [report.note] if report.note and report.note not in notes else []
    if options.csv:
        writer = csv.writer(sys.stdout, lineterminator="\n")
        writer.writerow(["day", options.by, "device_seconds"])
        writer.writerows((day.isoformat(), name, f"{seconds:.3f}") for day, name, seconds in rows)
    elif rows or not notes:
        from jgpu import terminal

        terminal.console().print(_table(rows, options.by))
    for note in notes:
        print(note, file=sys.stderr)
    return 1 if notes else 0  # what is missing is not nothing


def _ask(where: address.Address, day: datetime.date, by: Literal["user", "group"]) -> UsageReport:
    since, until = _midnight(day), _midnight(day + datetime.timedelta(days=1))
    # One step: a day has 23 or 25 hours where clocks are changed.
    reply = asking.ask_for(where, AskUsage(since, until, until - since, by), UsageIs)
    return decode_usage(reply.json, where)


def _midnight(day: datetime.date) -> float:
    return datetime.datetime.combine(day, datetime.time()).timestamp()


def _table(rows: Iterable[_Row], by: str) -> "RenderableType":
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("DAY")
    table.add_column(by.upper())
    table.add_column("DEVICE TIME", justify="right")
    for day, name, seconds in rows:
        # Names come from users: they are never markup.
        table.add_row(day.isoformat(), Text(name or "(no group)"), f"{seconds:.1f} s")
    return table if table.row_count else "Nobody used anything."


def _days(text: str) -> int:
    if not (text.isascii() and text.isdigit() and 1 <= int(text[:9]) <= 1000):
        raise argparse.ArgumentTypeError(f"{text!r} is no number of days from 1 to 1000.")
    return int(text)
