"""Tables of jobs and figures as comma-separated text, checked line by line.

A trace has one job a line; the columns are named in the first line, in any order, and columns
that nobody asks for are allowed. What is not covered: reading files; lines come from the caller.

The rule: whatever is wrong raises `ConfigError` with the file's name, the line and the value.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from jgpu.errors import ConfigError
from jgpu.sched.simulate.jobs import Cell, JobMemory, SimulatedJob

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

__all__ = ["MOST_ROWS", "Row", "read_jobs", "read_table"]

#: lines that a table may have
MOST_ROWS: Final = 100_000
_LONGEST_LINE: Final = 10_000
_LARGEST: Final = 1e18


@dataclass(frozen=True, slots=True)
class Row:
    """One line of a table, with its place for what there is to say about it."""

    file: str
    line: int
    values: Mapping[str, str]

    def text(self, column: str) -> str:
        """Return a value that may not be empty."""
        value = self.values[column].strip()
        if not value:
            raise self.error(column, "may not be empty")
        return value

    def number(self, column: str, *, least: float = 0.0) -> float:
        """Return a number of at least `least`."""
        try:
            value = float(self.values[column])
        except ValueError:
            raise self.error(column, "is not a number") from None
        if not least <= value <= _LARGEST:
            raise self.error(column, f"must be between {least:g} and {_LARGEST:g}")
        return value

    def whole(self, column: str, *, least: int = 0) -> int:
        """Return a whole number of at least `least`."""
        value = self.number(column, least=least)
        if value != int(value):
            raise self.error(column, "is not a whole number")
        return int(value)

    def error(self, column: str, what: str) -> ConfigError:
        """Return the sentence about a value that makes no sense."""
        return ConfigError(
            f"{self.file}, line {self.line}: {column} is {self.values[column]!r}, which {what}."
        )


def read_table(lines: Iterable[str], file: str, columns: Sequence[str]) -> list[Row]:
    """Return the rows of a table that has at least these columns."""
    names: list[str] = []
    rows: list[Row] = []
    for number, line in enumerate(lines, start=1):
        if len(line) > _LONGEST_LINE or number > MOST_ROWS:
            raise ConfigError(
                f"{file}, line {number}: a table has at most {MOST_ROWS} lines of at most "
                f"{_LONGEST_LINE} characters, and this line has {len(line)}."
            )
        values = next(csv.reader([line]), [])
        if not values:
            continue
        if not names:
            names = [name.strip() for name in values]
            _check_header(names, file, number, columns)
        elif len(values) != len(names):
            raise ConfigError(
                f"{file}, line {number}: {len(names)} values belong here ({', '.join(names)}), "
                f"but the line has {len(values)}: {line.strip()[:80]!r}."
            )
        else:
            rows.append(Row(file, number, dict(zip(names, values, strict=True))))
    if not rows:
        raise ConfigError(f"{file}, line 1: there is nothing in it below the names of the columns.")
    return rows


def _check_header(names: Sequence[str], file: str, line: int, columns: Sequence[str]) -> None:
    missing = [column for column in columns if column not in names]
    if missing:
        raise ConfigError(
            f"{file}, line {line}: the first line names the columns, and {missing[0]!r} is not "
            f"among {', '.join(names)[:200]!r}."
        )


def read_jobs(lines: Iterable[str], file: str) -> list[SimulatedJob]:
    """Return the jobs of a trace with the columns `arrival_s`, `duration_s`, `iterations`.

    Further columns: `name`, `user` (default: one of its own for each job), `load` (1),
    `resident_bytes`, `kept_bytes`, `transient_bytes` (0), `host_s` (0), `startup_s` (0).
    """
    return [
        _job(row, place)
        for place, row in enumerate(
            read_table(lines, file, ("arrival_s", "duration_s", "iterations")), start=1
        )
    ]


def _job(row: Row, place: int) -> SimulatedJob:
    def optional(column: str, default: float) -> float:
        return row.number(column) if column in row.values else default

    duration_s = row.number("duration_s", least=1e-6)
    iterations = row.whole("iterations", least=1)
    cell = Cell(iterations, duration_s / iterations, host_s=optional("host_s", 0.0))
    return SimulatedJob(
        name=row.text("name") if "name" in row.values else f"job {place}",
        user=row.text("user") if "user" in row.values else f"user{place}",
        arrival_s=row.number("arrival_s"),
        cells=(cell,),
        memory=JobMemory(
            int(optional("resident_bytes", 0)),
            int(optional("kept_bytes", 0)),
            int(optional("transient_bytes", 0)),
        ),
        load=optional("load", 1.0),
        startup_s=optional("startup_s", 0.0),
    )
