"""The status report as tables for a terminal; shared by `jgpu status`, `jgpu top` and the demo.

Names and labels come from users, so they are always text and never markup.
"""

import sys
import time
from collections.abc import Sequence
from typing import Final

from rich import box
from rich.console import (
    Console,
    ConsoleOptions,
    Group,
    JustifyMethod,
    RenderableType,
    RenderResult,
)
from rich.table import Table
from rich.text import Text

from jgpu.wire.reports.report import (
    EndReport,
    IterationTimes,
    LaneReport,
    Report,
    SessionReport,
)
from jgpu.wire.sizes import duration, short_size

__all__ = [
    "FittingTable",
    "console",
    "device_table",
    "report",
    "session_table",
]

_STYLES: Final = {
    "ready": "green",
    "running": "green",
    "waiting": "yellow",
    "starting": "yellow",
    "restarting": "yellow",
    "silent": "red",
    "spilled": "cyan",
    "paused": "cyan",
    "lost": "red",
    "failed": "red",
}
_NUMBERS: Final = frozenset(
    {"CAPACITY", "TIME", "EACH", "EPHEMERAL", "ID", "ITER", "LANE", "LANES", "RESIDENT"}
    | {"RESTARTS", "SPILLED", "USED"}
)
#: of these the end is shown where there is no room
_ENDS_COUNT: Final = frozenset({"CELL", "NOTEBOOK"})
_LONGEST_LABEL: Final = 40
#: work that takes so long is told of, seconds
_LONG_S: Final = 60.0
#: cells that a column of words may be cut to, and what lies between two columns
_LEAST_TEXT: Final = 12
_BETWEEN: Final = 3
#: the width of what no terminal shows
_WIDE: Final = 240


class FittingTable:
    """A table of the rows' columns that leaves out what a narrow terminal has no room for."""

    def __init__(
        self,
        title: str,
        rows: list[dict[str, Text]],
        *,
        optional: frozenset[str] = frozenset(),
        spare: Sequence[str] = (),
        numbers: frozenset[str] = _NUMBERS,
    ) -> None:
        """Leave out `optional` columns that are empty in all rows, and `spare` ones, in order.

        Columns in `numbers` are flush right and never cut.
        """
        self._title = title
        self._rows = rows
        self._spare = spare
        self._numbers = numbers
        columns = [c for c in rows[0] if c not in optional or any(row[c] for row in rows)]
        #: cells that each column would take
        self._full = {c: max(len(c), *(row[c].cell_len for row in rows)) for c in columns}

    def _rooms(self, width: int) -> dict[str, int]:
        """Cells for each column that is shown: numbers whole, words cut where need be."""
        rooms = {
            column: full if column in self._numbers else min(full, max(len(column), _LEAST_TEXT))
            for column, full in self._full.items()
        }
        for column in self._spare:
            if sum(rooms.values()) + _BETWEEN * len(rooms) <= width:
                break
            rooms.pop(column, None)
        left = max(0, width - sum(rooms.values()) - _BETWEEN * len(rooms))
        for column in sorted(rooms, key=lambda column: self._full[column]):
            more = min(left, self._full[column] - rooms[column])
            rooms[column] += more
            left -= more
        return rooms

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        rooms = self._rooms(options.max_width)
        left_out = [column for column in self._full if column not in rooms]
        table = Table(title=self._title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
        for column, room in rooms.items():
            justify: JustifyMethod = "right" if column in self._numbers else "left"
            table.add_column(column, justify=justify, no_wrap=True, width=room)
        for row in self._rows:
            table.add_row(
                *(
                    Text(_tail(row[column].plain, room)) if column in _ENDS_COUNT else row[column]
                    for column, room in rooms.items()
                )
            )
        yield table
        if left_out:
            yield Text(f"No room here for {', '.join(left_out)}.", style="dim")


def _state(word: str) -> Text:
    return Text(word, style=_STYLES.get(word, ""))


def _number(number: int) -> Text:
    """A count, empty for none."""
    return Text(str(number) if number else "")


def _size(count: int) -> Text:
    return Text(short_size(count) if count else "")


def device_table(status: Report) -> RenderableType:
    """A row for each device."""
    rows = [
        {
            "DEVICE": Text(device.name),
            "STATE": _state(device.state),
            "USED": Text(short_size(device.used_bytes)),
            "CAPACITY": Text(short_size(device.capacity_bytes)),
            "POLICY": Text(device.policy),
            "LANES": Text(str(len(device.lanes))),
            "RESTARTS": _number(device.restarts),
        }
        for device in status.devices
    ]
    return FittingTable(
        "Devices", rows, optional=frozenset({"RESTARTS"}), spare=("LANES", "POLICY")
    )


def session_table(status: Report) -> RenderableType:
    """A row for each session, as far as the asker may see it; there must be one."""
    rows = [
        {
            "ID": Text(str(session.id)),
            "USER": Text(session.user),
            "NOTEBOOK": Text(_tail(session.label, _LONGEST_LABEL)),
            "CELL": Text(_tail(session.cell, _LONGEST_LABEL)),
            "STATE": _what(session),
            "LANE": Text("" if session.lane is None else str(session.lane)),
            "RESIDENT": _size(session.resident_bytes),
            "EPHEMERAL": _size(session.ephemeral_bytes),
            "SPILLED": _size(session.spilled_bytes),
            "TIME": Text(duration(session.device_seconds)),
            "ITER": _number(session.iterations),
            "EACH": _each(session.iteration_seconds),
        }
        for session in status.sessions
    ]
    optional = frozenset({"NOTEBOOK", "CELL", "LANE", "SPILLED", "EACH"})
    spare = ("LANE", "EACH", "ITER", "CELL", "SPILLED", "NOTEBOOK", "ID")
    return FittingTable("Sessions", rows, optional=optional, spare=spare)


def _each(times: IterationTimes) -> Text:
    """What an iteration takes of the device, mostly; empty before the first."""
    return Text(f"{times.median * 1000:.3g} ms" if times.median else "")


def _what(session: SessionReport) -> Text:
    text = _state(session.state)
    if session.ahead:
        text.append(f" ({session.ahead} ahead)")
    if session.waits_for:
        text.append(" for " + ", ".join(session.waits_for))
    return text


def _last_end(end: EndReport) -> str:
    """How the executor before this one ended, as far as the asker may know."""
    when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(end.when))
    text = f"The executor before {end.how} on {when}"
    culprit = end.culprit
    if culprit is None:
        return f"{text}."
    if culprit.session is None:
        return f"{text}, by a program of {culprit.user}."
    return f"{text}, by {culprit.op} of session {culprit.session} ({culprit.user})."


def _lane(lane: LaneReport) -> str:
    """What is unusual about a lane; empty where nothing is."""
    took_s = time.time() - lane.running_since if lane.running_since else lane.running_seconds
    what = lane.op or "one piece of work"
    if lane.state == "retired":
        return (
            f"Lane {lane.id} has been given up, for {what} of a notebook that is gone does not "
            "end. Its memory comes back when it does."
        )
    if took_s < _LONG_S:
        return ""
    whose = f" of session {lane.running}" if lane.running is not None else ""
    return f"Lane {lane.id} has been at {what}{whose} for {duration(took_s)}."


def _tail(label: str, longest: int) -> str:
    """The end of a long path is what tells it from others."""
    line = label.replace("\n", " ")
    return line if len(line) <= longest else "…" + line[1 - longest :]


def console() -> Console:
    """Standard output; as wide as need be where it goes to a file or another program."""
    return Console() if sys.stdout.isatty() else Console(width=_WIDE)


def report(status: Report) -> RenderableType:
    """Everything, one below the other."""
    parts: list[RenderableType] = [device_table(status)]
    parts += [Text(d.note, style="yellow") for d in status.devices if d.note]
    lanes = [_lane(lane) for device in status.devices for lane in device.lanes]
    parts += [Text(text, style="yellow") for text in lanes if text]
    ends = [_last_end(d.last_end) for d in status.devices if d.last_end is not None]
    parts += [Text(text, style="yellow") for text in ends]
    if status.broker.drain:
        state = f"The device is {'being ' * (status.broker.drain == 'draining')}drained."
        parts.append(Text(f"{state} {status.broker.drain_text}", style="yellow"))
    parts.append(session_table(status) if status.sessions else Text("No sessions."))
    # Users beyond their budget, and a ledger that cannot be written.
    said = [user.text for user in status.users]
    said += [status.ledger.text] if status.ledger else []
    parts += [Text(text, style="yellow") for text in said if text]
    return Group(*parts)
