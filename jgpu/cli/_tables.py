"""The status report as tables for a terminal; shared by `jgpu status`, `jgpu top` and the demo.

Names and labels come from users, so they are always text and never markup.
"""

from collections.abc import Mapping
from typing import Any, Final

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

__all__ = ["device_table", "format_bytes", "format_seconds", "report", "session_table"]

_STYLES: Final = {
    "ready": "green",
    "running": "green",
    "waiting": "yellow",
    "starting": "yellow",
    "restarting": "yellow",
    "spilled": "cyan",
    "paused": "cyan",
    "lost": "red",
    "failed": "red",
}
_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB")
_LONGEST_LABEL: Final = 40


def format_bytes(count: int) -> str:
    """A size for people: three digits and a unit, powers of 1024."""
    size, unit = float(count), 0
    while size >= 1000 and unit < len(_UNITS) - 1:
        size, unit = size / 1024, unit + 1
    return f"{count} B" if unit == 0 else f"{size:.3g} {_UNITS[unit]}"


def format_seconds(seconds: float) -> str:
    """A time for people."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def _table(title: str, *columns: str, right: tuple[str, ...] = ()) -> Table:
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for column in columns:
        table.add_column(column, justify="right" if column in right else "left", no_wrap=True)
    return table


def _state(word: str) -> Text:
    return Text(word, style=_STYLES.get(word, ""))


def device_table(status: Mapping[str, Any]) -> Table:
    """A row for each device."""
    columns = ("DEVICE", "KIND", "STATE", "MEMORY", "POLICY", "LANES", "RESTARTS")
    table = _table("Devices", *columns, right=("LANES", "RESTARTS"))
    for device in status["devices"]:
        memory = f"{format_bytes(device['used_bytes'])} of {format_bytes(device['capacity_bytes'])}"
        table.add_row(
            Text(device["name"]),
            device["kind"],
            _state(device["state"]),
            memory,
            device["policy"],
            str(len(device["lanes"])),
            str(device["restarts"]),
        )
    return table


def session_table(status: Mapping[str, Any]) -> Table:
    """A row for each session, as far as the asker may see it."""
    right = ("ID", "LANE", "RESIDENT", "EPHEMERAL", "SPILLED", "DEVICE", "ITERATIONS")
    columns = ["ID", "USER", "NOTEBOOK", "CELL", "STATE", "LANE", "RESIDENT", "EPHEMERAL"]
    columns += ["SPILLED", "DEVICE", "ITERATIONS"]
    table = _table("Sessions", *columns, right=right)
    for session in status["sessions"]:
        table.add_row(
            str(session["id"]),
            Text(session["user"]),
            Text(_tail(session["label"])),
            Text(_tail(session["cell"])),
            _what(session),
            "" if session["lane"] is None else str(session["lane"]),
            format_bytes(session["resident_bytes"]),
            format_bytes(session["ephemeral_bytes"]),
            format_bytes(session["spilled_bytes"]),
            format_seconds(session["device_seconds"]),
            str(session["iterations"]),
        )
    return table


def _what(session: Mapping[str, Any]) -> Text:
    text = _state(session["state"])
    if session["queue_position"]:
        text.append(f" (place {session['queue_position']})")
    if session["waits_for"]:
        text.append(" for " + ", ".join(session["waits_for"]))
    return text


def _tail(label: str) -> str:
    """The end of a long path is what tells it from others."""
    line = label.replace("\n", " ")
    return line if len(line) <= _LONGEST_LABEL else "…" + line[1 - _LONGEST_LABEL :]


def report(status: Mapping[str, Any]) -> RenderableType:
    """Everything, one below the other."""
    parts: list[RenderableType] = [device_table(status)]
    parts += [Text(d["note"], style="yellow") for d in status["devices"] if d["note"]]
    parts.append(session_table(status) if status["sessions"] else Text("No sessions."))
    return Group(*parts)
