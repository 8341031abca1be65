"""The demonstration on a screen: a live table while it runs, the results at its end.

On a terminal the table is drawn in place; elsewhere (a file, CI) it is printed every few seconds.
"""

import time
from collections.abc import Sequence
from typing import Final

from rich import box
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from jgpu.demo.evidence import Evidence
from jgpu.demo.lesson import Lesson
from jgpu.terminal import FittingTable
from jgpu.wire.reports.report import Report, SessionReport
from jgpu.wire.sizes import duration, short_size

__all__ = ["Display", "summary"]

_STYLES: Final = {"running": "green", "done": "green", "waiting": "yellow", "failed": "bold red"}
_NUMBERS: Final = frozenset(
    {"CELL", "DEVICE TIME", "EPHEMERAL", "ITERATIONS", "LANE", "RESIDENT"}
)  # fmt: skip
_WIDTH: Final = 120
_PRINT_EVERY_S: Final = 5.0


class Display:
    """Shows the lessons; `update` as often as there is news."""

    def __init__(self, console: Console) -> None:
        self._console = console
        if not console.is_terminal:
            console.width = max(console.width, _WIDTH)
        self._live = Live(console=console, auto_refresh=False) if console.is_terminal else None
        self._printed = 0.0
        self._begun = time.monotonic()

    def __enter__(self) -> "Display":
        if self._live:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live:
            self._live.stop()

    def update(self, lessons: Sequence[Lesson], status: Report, *, last: bool = False) -> None:
        """Draw the table anew, or print it if it is time for that."""
        now = time.monotonic()
        table = _table(lessons, status, now - self._begun)
        if self._live:
            self._live.update(table, refresh=True)
        elif last or now - self._printed >= _PRINT_EVERY_S:
            self._printed = now
            self._console.print(table)


def _table(lessons: Sequence[Lesson], status: Report, seconds: float) -> RenderableType:
    rows = [_row(lesson) for lesson in lessons]
    spare = ("LANE", "EPHEMERAL", "RESIDENT", "ITERATIONS")
    table = FittingTable("", rows, spare=spare, numbers=_NUMBERS)
    return Group(Text(_headline(status, seconds)), table)


def _row(lesson: Lesson) -> dict[str, Text]:
    session = lesson.session or SessionReport(id=0)
    lane = session.lane if lesson.state == "running" else None
    return {
        "USER": Text(lesson.user),
        "NOTEBOOK": Text(lesson.name),
        "CELL": Text(f"{lesson.cell}/{lesson.cells}"),
        "LANE": Text("" if lane is None else str(lane)),
        "STATE": _state(lesson),
        "ITERATIONS": Text(str(session.iterations)),
        "RESIDENT": Text(short_size(session.resident_bytes)),
        "EPHEMERAL": Text(short_size(session.ephemeral_bytes)),
        "DEVICE TIME": Text(duration(session.device_seconds)),
    }


def _state(lesson: Lesson) -> Text:
    """The lesson's state, or while it runs its session's: running, waiting, idle, ..."""
    word = lesson.state
    session = lesson.session
    if word == "running" and session:
        word = session.state
    text = Text(word, style=_STYLES.get(word, ""))
    if word == "waiting" and session and session.waits_for:
        text.append(" for " + ", ".join(session.waits_for))
    return text


def _headline(status: Report, seconds: float) -> str:
    devices = "; ".join(
        f"{device.name}: {short_size(device.used_bytes)} of "
        f"{short_size(device.capacity_bytes)} in use, lanes: {len(device.lanes)}, "
        f"policy {device.policy}"
        for device in status.devices
    )
    return f"{duration(seconds)}  {devices}"


def summary(lessons: Sequence[Lesson], status: Report, evidence: Evidence) -> Group:
    """What came out: results, device time, and who held the device."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, title="Results", title_justify="left")
    for name in ("USER", "NOTEBOOK", "RESULT"):
        table.add_column(name, overflow="fold")
    table.add_column("TIME", justify="right", no_wrap=True)
    table.add_column("DEVICE TIME", justify="right", no_wrap=True)
    for lesson in lessons:
        table.add_row(
            Text(lesson.user),
            Text(lesson.name),
            Text(lesson.problem, style="red") if lesson.problem else Text(lesson.result),
            Text(duration(lesson.seconds)),
            Text(duration(lesson.session.device_seconds if lesson.session else 0.0)),
        )
    taught = {lesson.user for lesson in lessons}
    times = {user.name: user.device_seconds for user in status.users if user.name in taught}
    total = sum(times.values()) or 1.0
    shares = ", ".join(
        f"{user} {duration(seconds)} ({100 * seconds / total:.0f} %)"
        for user, seconds in sorted(times.items())
    )
    lines = [f"Device time: {shares}.", *evidence.sentences()]
    failures = (
        Text.from_ansi(f"\n{lesson.name}:\n{lesson.traceback}")
        for lesson in lessons
        if lesson.traceback
    )
    return Group(table, *(Text(line) for line in lines), *failures)
