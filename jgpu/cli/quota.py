"""Show and set what users may have of the shared device, and what they used.

    jgpu quota list                       what is set, by scope, and what counts for each user
    jgpu quota set SCOPE FIELD=VALUE ...  set fields live; SCOPE is default, group:NAME, user:NAME
    jgpu quota unset SCOPE [FIELD ...]    take them out again; all of the scope without fields
    jgpu quota usage [USER]               device time used of each budget

    --until "2026-11-23 18:00", --until 18:00, --until +2h   with set: ends by itself then

Fields: weight, memory, resident, device_seconds, period, sessions, priority, over_budget; `none` is
no limit. Only an administrator sets anything, and sees others.
"""

import argparse
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from typing import TYPE_CHECKING, Any

import msgspec

from jgpu.errors import ConfigError
from jgpu.wire import address, asking
from jgpu.wire.messages import AskQuotas, QuotasAre, SetQuota
from jgpu.wire.reports.report import QuotasReport, StandingReport, decode_quotas

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

__all__ = ["main"]


def main(arguments: Sequence[str]) -> int:
    """`jgpu quota list|set|unset|usage`."""
    options = _parser().parse_args(arguments)
    where = address.find_for_administration()
    request, show = _request(options)
    reply = asking.ask_for(where, request, QuotasAre)
    if options.json:
        print(msgspec.json.format(reply.json, indent=2).decode())
        return 0
    from rich.console import Console

    console = Console()
    for part in show(decode_quotas(reply.json, where)):
        console.print(part)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="jgpu quota",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(dest="command", required=True)
    made = {
        "list": commands.add_parser("list", help="what is set, and what counts for each user"),
        "set": commands.add_parser("set", help="set fields live"),
        "unset": commands.add_parser("unset", help="take out what was set live"),
        "usage": commands.add_parser("usage", help="device time used of each budget"),
    }
    for name, command in made.items():
        command.add_argument("--json", action="store_true", help="the whole report, for programs")
        if name in ("set", "unset"):
            command.add_argument("scope", metavar="SCOPE", help="default, group:NAME or user:NAME")
    made["set"].add_argument("settings", nargs="+", metavar="FIELD=VALUE")
    made["set"].add_argument("--until", metavar="WHEN", help="it ends by itself then")
    made["set"].add_argument("--new", action="store_true", help="the name needs not be known yet")
    made["unset"].add_argument("fields", nargs="*", metavar="FIELD")
    made["usage"].add_argument("user", nargs="?", default="", metavar="USER")
    return parser


def _request(
    options: argparse.Namespace,
) -> tuple[AskQuotas | SetQuota, "Callable[[QuotasReport], list[RenderableType]]"]:
    """What to ask, and what to show of the answer."""
    if options.command == "list":
        return AskQuotas(), lambda report: [_scopes(report), _quotas(report), *_notes(report)]
    if options.command == "usage":
        return AskQuotas(options.user), lambda report: [_usage(report), *_notes(report)]
    if options.command == "set":
        settings = tuple(_setting(text) for text in options.settings)
        until = 0.0 if options.until is None else read_moment(options.until, time.time())
        request = SetQuota(options.scope, settings, options.new, until)
    else:
        request = SetQuota(options.scope, tuple((name, "") for name in options.fields))
    return request, lambda report: [_scopes(report), *_notes(report)]


def read_moment(text: str, now: float) -> float:
    """A moment, in seconds since the epoch: a date and time here, a time of today, or `+2h`."""
    from jgpu.wire.sizes import parse_seconds

    words = text.strip()
    if words.startswith("+"):
        with suppress(ValueError):
            return now + parse_seconds(words[1:])
    else:
        today = datetime.fromtimestamp(now).date()
        for written in (words, f"{today} {words}"):
            with suppress(ValueError, OverflowError):
                return datetime.fromisoformat(written).timestamp()
    raise ConfigError(f"{text!r} is no moment; write it like 2026-11-23 18:00, 18:00 or +2h.")


def _setting(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not value.strip():
        raise ConfigError(f"{text!r} is no setting; write it like memory=4G.")
    return name.strip(), value.strip()


# -- tables ----------------------------------------------------------------------------------


def _table(*columns: str) -> "Table":
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for column in columns:
        table.add_column(column)
    return table


def _cells(*values: str) -> Any:
    """Names come from users: they are text and never markup."""
    from rich.text import Text

    return [Text(value) for value in values]


def _shown(settings: Mapping[str, Any]) -> dict[str, str]:
    from jgpu.broker.control.quotas.spec import show

    return {name: show(name, value) for name, value in settings.items()}


def _scopes(report: QuotasReport) -> "RenderableType":
    if not report.scopes:
        return "Nothing is set."
    timed = any(row.until for row in report.scopes)
    table = _table("SCOPE", "FROM", "SETTINGS", *(["UNTIL"] if timed else []))
    for row in report.scopes:
        said = "  ".join(f"{name}={value}" for name, value in _shown(row.settings).items())
        until = [_moment(row.until) if row.until else ""] if timed else []
        table.add_row(*_cells(row.scope, row.source, said, *until))
    return table


def _quotas(report: QuotasReport) -> "RenderableType":
    table = _table(
        "USER", "GROUPS", "WEIGHT", "MEMORY", "RESIDENT", "BUDGET", "SESSIONS", "PRIORITY"
    )
    for row in report.users:
        quota = _shown(msgspec.structs.asdict(row.quota))
        groups = ", ".join(row.groups[:4]) + (", ..." if len(row.groups) > 4 else "")
        table.add_row(
            *_cells(
                row.name, groups, quota["weight"], quota["memory"], quota["resident"],
                _budget(row), quota["sessions"], quota["priority"],
            )
        )  # fmt: skip
    return table


def _budget(row: StandingReport) -> str:
    quota = _shown(msgspec.structs.asdict(row.quota))
    if quota["device_seconds"] == "none":
        return "none"
    return f"{quota['device_seconds']} in {quota['period']}, then {quota['over_budget']}"


def _usage(report: QuotasReport) -> "RenderableType":
    table = _table("USER", "USED", "OF", "PERIOD", "STATE", "FREE AT")
    for row in report.users:
        quota = _shown(msgspec.structs.asdict(row.quota))
        free = _moment(row.free_at) if row.free_at else ""
        table.add_row(
            *_cells(
                row.name, f"{row.used_in_period:.3f} s", quota["device_seconds"],
                quota["period"], row.state, free,
            )
        )  # fmt: skip
    return table


def _moment(when: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(when))


def _notes(report: QuotasReport) -> "list[RenderableType]":
    """What somebody should know besides."""
    from rich.text import Text

    texts = [*report.notes, *(row.text for row in report.users if row.text)]
    if report.ledger and report.ledger.text:
        texts.append(report.ledger.text)
    return [Text(text, style="yellow") for text in texts]
