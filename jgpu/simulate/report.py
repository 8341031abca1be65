"""What a simulation prints: tables, what it assumes, what it leaves out; the same as JSON.

The rule: a published figure stands beside ours, and nothing is printed that is not in the JSON.
"""

from __future__ import annotations

import argparse
import json
import random
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jgpu.errors import ConfigError
from jgpu.sched.simulate.traces import Row, read_table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jgpu.simulate.chart import Chart

__all__ = [
    "SimulationReport",
    "Table",
    "add_common",
    "at_least",
    "chance_of",
    "numbers",
    "published",
    "read_lines",
    "show",
]

#: a cell: text, a number with its format, or nothing
Value = str | int | float | None


@dataclass(frozen=True, slots=True)
class Table:
    """Rows under named columns."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Value]]


@dataclass(frozen=True, slots=True)
class SimulationReport:
    """One simulation's outcome."""

    title: str
    tables: Sequence[Table]
    #: what the figures rest on
    assumes: Sequence[str] = ()
    #: what the model leaves out
    leaves_out: Sequence[str] = ()
    #: sentences about the outcome
    findings: Sequence[str] = ()
    chart: Chart | None = None
    #: further figures, for the JSON alone
    more: dict[str, Any] = field(default_factory=dict)


def add_common(parser: argparse.ArgumentParser) -> None:
    """The options that every kind of simulation has."""
    parser.add_argument("--seed", type=int, default=1, help="of all chance in it (default: 1)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every figure here")
    parser.add_argument(
        "--plot",
        type=Path,
        metavar="FILE",
        help="draw the figures here: .svg, .png or .pdf (needs jgpu[plot])",
    )


def chance_of(*names: object) -> random.Random:
    """Return a source of chance that depends on these names alone."""
    return random.Random(repr(names))


def at_least(least: float, kind: type[int] | type[float] = float) -> Any:
    """Return a converter for argparse that refuses smaller numbers with a sentence."""

    def convert(text: str) -> int | float:
        try:
            value = kind(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r} is not a number") from None
        if not least <= value < float("inf"):
            raise argparse.ArgumentTypeError(f"{text} is less than {least:g}, or not finite")
        return value

    return convert


def numbers(text: str) -> tuple[float, ...]:
    """Return the numbers, all above 0, of a list with commas, "" for none; for argparse."""
    if not text:
        return ()
    try:
        found = tuple(float(each) for each in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of numbers") from None
    if not all(0 < each < float("inf") for each in found):
        raise argparse.ArgumentTypeError(f"{text!r} holds a number that is not above 0")
    return found


def read_lines(path: Path) -> list[str]:
    """Return the lines of a text file; raises `ConfigError` where it cannot be read."""
    try:
        return path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read: {error}.") from None


def published(name: str, *columns: str) -> list[Row]:
    """Return a table of published figures that comes with the simulator."""
    place = files("jgpu.sched.simulate") / "workloads" / name
    return read_table(place.read_text(encoding="utf-8").splitlines(), name, columns)


def show(report: SimulationReport, options: argparse.Namespace) -> None:
    """Print a report, and write the files that were asked for."""
    print(report.title)
    for table in report.tables:
        print()
        print(_text_of(table))
    for title, sentences in (
        ("Outcome", report.findings),
        ("Assumed", report.assumes),
        ("Left out", report.leaves_out),
    ):
        if sentences:
            print(f"\n{title}:")
            print("\n".join(f"  - {sentence}" for sentence in sentences))
    if options.json:
        _write(options.json, json.dumps(_json_of(report, options), indent=2) + "\n")
    if options.plot:
        if report.chart is None:
            raise ConfigError("There is nothing to draw in this simulation; leave --plot out.")
        report.chart.draw(options.plot)
        print(f"\nWritten: {options.plot}")


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error}.") from None
    print(f"\nWritten: {path}")


def _text_of(table: Table) -> str:
    lines = [list(table.columns), *([_cell(value) for value in row] for row in table.rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    text = [table.title] if table.title else []
    for number, line in enumerate(lines):
        first = line[0].ljust(widths[0])
        rest = [each.rjust(width) for each, width in zip(line[1:], widths[1:], strict=True)]
        text.append("  ".join(["", first, *rest]).rstrip())
        if number == 0:
            text.append("  " + "  ".join("-" * width for width in widths))
    return "\n".join(text)


def _cell(value: Value) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        size = abs(value)
        return f"{value:.0f}" if size >= 1000 else f"{value:.1f}" if size >= 20 else f"{value:.3g}"
    return str(value)


def _json_of(report: SimulationReport, options: argparse.Namespace) -> dict[str, Any]:
    given = {k: str(v) if isinstance(v, Path) else v for k, v in vars(options).items()}
    return {
        "simulation": report.title,
        "options": {k: v for k, v in given.items() if k not in ("json", "plot")},
        "tables": [
            {
                "title": table.title,
                "rows": [dict(zip(table.columns, row, strict=True)) for row in table.rows],
            }
            for table in report.tables
        ],
        "findings": list(report.findings),
        "assumes": list(report.assumes),
        "leaves_out": list(report.leaves_out),
        **report.more,
    }
