"""A class list: a user and their settings in each row of a CSV, out and in. Pure.

A table may have columns that say nothing of quotas (a student's number); only `user`, `until` and
the fields of a quota count. An empty cell leaves a field as it is, "-" takes out what was set.
Semicolons and tabs between cells are understood as well: where a comma is written for a decimal
point, spreadsheets put semicolons there.
"""

import csv
import io
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from jgpu.errors import ConfigError
from jgpu.hub.page.people.settings import FIELDS, ScopeSetting, moment_of
from jgpu.hub.page.words import setting
from jgpu.wire.limits import MAX_NAME
from jgpu.wire.reports.report import ScopeReport, StandingReport

__all__ = ["MOST_BYTES", "BadCell", "ClassLine", "csv_row", "read_list", "write_list"]

#: rows of one list, and what it may come to
MOST_ROWS: Final = 5000
MOST_BYTES: Final = 4 << 20
#: what may stand between cells
_BETWEEN: Final = (",", ";", "\t")
_TAKE_OUT: Final = "-"
_FORMAT: Final = "%Y-%m-%d %H:%M"
_QUOTE: Final = "'"
#: what a spreadsheet would take for a formula, and what keeps it from that
_FORMULA: Final = ("=", "+", "-", "@", "\t", "\r", _QUOTE)


class BadCell(ConfigError):
    """A list that was not understood, and where: nothing of it is applied."""

    def __init__(self, line: int, column: str, what: str) -> None:
        super().__init__(f"Line {line}, column {column}: {what} Nothing was changed.")
        self.line = line
        self.column = column


@dataclass(frozen=True, slots=True)
class ClassLine:
    """A row of a list: what it sets, and its line in the file."""

    number: int
    setting: ScopeSetting


def read_list(text: str, now: float) -> list[ClassLine]:
    """All rows that set something; raises `BadCell` for the first that is not understood."""
    text = text.removeprefix("\ufeff")
    rows = csv.reader(io.StringIO(text), delimiter=_between(text), strict=True)
    lines: list[ClassLine] = []
    try:
        header = [cell.strip().lower() for cell in next(rows, [])]
        _check_header(header)
        seen: dict[tuple[str, float], int] = {}
        for row in rows:
            if any(cell.strip() for cell in row):
                line = _line(header, row, rows.line_num, now)
                key = line.setting.scope, line.setting.until
                if key in seen:
                    name = line.setting.scope.removeprefix("user:")
                    raise BadCell(line.number, "user", f"{name!r} is in line {seen[key]} already.")
                seen[key] = line.number
                lines.append(line)
            if len(lines) > MOST_ROWS:
                raise BadCell(rows.line_num, "user", f"a list has at most {MOST_ROWS} rows.")
    except csv.Error as error:
        raise BadCell(rows.line_num, "1", f"this is no CSV ({error}).") from None
    return [line for line in lines if line.setting.values]


def _between(text: str) -> str:
    """What stands between cells: with it the first line has a column `user`."""
    first = text.partition("\n")[0].lower()
    names = {each: [cell.strip(' \r"') for cell in first.split(each)] for each in _BETWEEN}
    return next((each for each in _BETWEEN if "user" in names[each]), _BETWEEN[0])


def _check_header(header: list[str]) -> None:
    if "user" not in header:
        raise BadCell(1, "1", "the first line has to name the columns, one of them `user`.")
    for name in ("user", "until", *FIELDS):
        if header.count(name) > 1:
            raise BadCell(1, name, "there are two columns of this name.")


def _line(header: list[str], row: list[str], number: int, now: float) -> ClassLine:
    if any(cell.strip() for cell in row[len(header) :]):
        raise BadCell(number, str(len(header) + 1), "there are more cells than columns.")
    cells = {name: cell.strip() for name, cell in zip(header, row, strict=False)}
    user = cells["user"]
    if user.removeprefix(_QUOTE).startswith(_FORMULA):
        user = user.removeprefix(_QUOTE)
    if not user or len(user) > MAX_NAME - len("user:") or not user.isprintable():
        raise BadCell(number, "user", f"{user[:40]!r} is no user's name.")
    values = {
        name: "" if cells[name] == _TAKE_OUT else cells[name] for name in FIELDS if cells.get(name)
    }
    try:
        until = moment_of(cells.get("until", ""), now)
    except ConfigError as error:
        raise BadCell(number, "until", str(error).removeprefix("until: ")) from None
    return ClassLine(number, ScopeSetting(f"user:{user}", values, until))


def write_list(people: Iterable[StandingReport], scopes: Iterable[ScopeReport]) -> Iterator[str]:
    """The list of these people, which `read_list` reads again, line by line.

    `scopes`: what is said, and for how long; who has something for good and something else for a
    time has a line for each. Groups and usage are there to be read.
    """
    said: dict[str, list[ScopeReport]] = {}
    for scope in sorted(scopes, key=lambda row: row.until):
        if scope.source == "live":
            said.setdefault(scope.scope, []).append(scope)
    yield csv_row(["user", *FIELDS, "until", "groups", "used_device_seconds", "state"])
    for person in people:
        nothing = ScopeReport(scope="", source="live")
        for row in said.get(f"user:{person.name}", [nothing]):
            own = row.settings
            yield csv_row(
                [
                    person.name,
                    *(setting(name, own[name]) if name in own else "" for name in FIELDS),
                    time.strftime(_FORMAT, time.localtime(row.until)) if row.until else "",
                    " ".join(person.groups),
                    f"{person.used_in_period:.3f}",
                    person.state,
                ]
            )


def csv_row(cells: list[str]) -> str:
    """One line; what a spreadsheet would run is quoted for it."""
    out = io.StringIO()
    csv.writer(out, lineterminator="\r\n").writerow(
        [f"{_QUOTE}{cell}" if cell.startswith(_FORMULA) else cell for cell in cells]
    )
    return out.getvalue()
