"""Figures with their goals: printed as a table, written as JSON.

The rule: what is judged is a ratio, a share or a time relative to one of the same run; a goal that
was missed is printed as plainly as one that was met.
"""

import argparse
import json
import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from jgpu.bench.broker import host

__all__ = ["Figure", "add_common", "at_least", "at_most", "percentile", "plain", "show"]


@dataclass(frozen=True, slots=True)
class Figure:
    """A measured figure: the median of what was found, and its lowest and highest."""

    name: str
    value: float
    low: float
    high: float
    unit: str = ""
    #: None where nothing was aimed at
    goal: float | None = None
    #: "at most" or "at least"
    sense: str = ""

    @property
    def met(self) -> bool | None:
        """Whether the median keeps the goal."""
        if self.goal is None:
            return None
        return self.value <= self.goal if self.sense == "at most" else self.value >= self.goal

    def cells(self) -> tuple[str, ...]:
        """Its row of the table."""
        goal = "" if self.goal is None else f"{self.sense} {_text(self.goal)} {self.unit}".strip()
        met = {None: "", True: "met", False: "MISSED"}[self.met]
        value = f"{_text(self.value)} {self.unit}".strip()
        return self.name, value, f"{_text(self.low)} to {_text(self.high)}", goal, met


def plain(name: str, values: Sequence[float], unit: str = "") -> Figure:
    """A figure that is told without a goal."""
    return Figure(name, statistics.median(values), min(values), max(values), unit)


def at_most(name: str, values: Sequence[float], goal: float, unit: str = "") -> Figure:
    """A figure whose median should be no higher than the goal."""
    median = statistics.median(values)
    return Figure(name, median, min(values), max(values), unit, goal, "at most")


def at_least(name: str, values: Sequence[float], goal: float, unit: str = "") -> Figure:
    """A figure whose median should be no lower than the goal."""
    median = statistics.median(values)
    return Figure(name, median, min(values), max(values), unit, goal, "at least")


def percentile(values: Iterable[float], percent: float) -> float:
    """The least of the values that is no less than `percent` of them; there must be one."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(len(ordered) * percent / 100) - 1)]


def add_common(
    parser: argparse.ArgumentParser, *, seconds: float, repeat: int, target_ms: float
) -> None:
    """The options that every measurement of sharing has."""
    parser.add_argument(
        "--seconds",
        type=float,
        default=seconds,
        help="length of each measured stretch (default: %(default)g)",
    )
    parser.add_argument(
        "--repeat", type=int, default=repeat, help="how often each (default: %(default)d)"
    )
    parser.add_argument(
        "--target-ms",
        type=float,
        default=target_ms,
        metavar="MS",
        help="what a native iteration shall take about (default: %(default)g)",
    )
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"), help="default: cpu")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every figure here")


def show(
    title: str,
    figures: Sequence[Figure],
    options: argparse.Namespace,
    *,
    notes: Sequence[str] = (),
    more: dict[str, Any] | None = None,
) -> None:
    """Print the figures, and write them and `more` where that was asked for."""
    from rich.console import Console

    console = Console()
    console.print(_table(title, figures))
    for note in notes:
        console.print(f"- {note}", highlight=False, markup=False, soft_wrap=True)
    if options.json:
        words = {name: value for name, value in vars(options).items() if name != "json"}
        found = {
            "host": host(),
            "bench": options.what,
            "options": words,
            "figures": [asdict(figure) | {"met": figure.met} for figure in figures],
            "notes": list(notes),
            **(more or {}),
        }
        options.json.write_text(json.dumps(found, indent=1) + "\n")


def _table(title: str, figures: Sequence[Figure]) -> Any:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, title=title)
    table.add_column("figure")
    for heading in ("measured", "lowest to highest", "goal", ""):
        table.add_column(heading, justify="right")
    for figure in figures:
        table.add_row(*map(Text, figure.cells()))
    return table


def _text(value: float) -> str:
    if abs(value) >= 100:
        return f"{value:.0f}"
    return f"{value:.4g}" if abs(value) < 1 else f"{value:.3f}"
