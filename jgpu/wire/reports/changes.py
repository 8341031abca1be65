"""What is different between two reports: told to whoever watches, instead of whole reports.

Rows of devices, sessions and users are known by name or number; a row that changed comes whole.
`apply(before, changes(before, after))` is `after`, whatever the two are.

Fields are added only, each with a default, as in a report.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

from msgspec import UNSET, UnsetType

from jgpu.wire.fields import Ids, Name, Text
from jgpu.wire.reports.parts import ReportPart, decode_json
from jgpu.wire.reports.report import (
    BrokerReport,
    DeviceReport,
    LedgerReport,
    Report,
    SessionReport,
    UserReport,
)

__all__ = ["Changes", "apply", "changes", "decode_changes"]

_Row = TypeVar("_Row")


class Changes(ReportPart, frozen=True, kw_only=True, omit_defaults=True):
    """What changed from one report to the next; what is not named stayed as it was."""

    broker: BrokerReport | UnsetType = UNSET
    #: rows that are new or different
    devices: tuple[DeviceReport, ...] = ()
    sessions: tuple[SessionReport, ...] = ()
    users: tuple[UserReport, ...] = ()
    #: what is not there any more
    gone_devices: tuple[Text, ...] = ()
    gone_sessions: Ids = ()
    gone_users: tuple[Name, ...] = ()
    #: None: the watcher may not see it any more
    ledger: LedgerReport | UnsetType | None = UNSET
    #: in place of all that: where rows come twice, or in another order than before
    whole: Report | UnsetType = UNSET

    def __bool__(self) -> bool:
        """Whether anything changed."""
        return self != _NOTHING


_NOTHING = Changes()


def changes(before: Report, after: Report) -> Changes:
    """Return what makes `after` of `before`."""
    if before is after:
        return _NOTHING
    found = Changes(
        broker=UNSET if before.broker == after.broker else after.broker,
        devices=_different(before.devices, after.devices, _device),
        sessions=_different(before.sessions, after.sessions, _session),
        users=_different(before.users, after.users, _user),
        gone_devices=_gone(before.devices, after.devices, _device),
        gone_sessions=_gone(before.sessions, after.sessions, _session),
        gone_users=_gone(before.users, after.users, _user),
        ledger=UNSET if before.ledger == after.ledger else (after.ledger or None),
    )
    return found if apply(before, found) == after else Changes(whole=after)


def apply(report: Report, told: Changes) -> Report:
    """Return the report with what changed: sessions by number, users by name."""
    if told.whole:
        return told.whole
    ledger = report.ledger if told.ledger is UNSET else (told.ledger or UNSET)
    return Report(
        broker=told.broker or report.broker,
        devices=_merged(report.devices, told.devices, told.gone_devices, _device),
        sessions=_sorted(report.sessions, told.sessions, told.gone_sessions, _session),
        users=_sorted(report.users, told.users, told.gone_users, _user),
        ledger=ledger,
    )


def decode_changes(data: bytes, where: object = "?") -> Changes:
    """Read what a broker of this or another version tells; raises `ProtocolError`."""
    return decode_json(data, Changes, "changes", where)


def _device(row: DeviceReport) -> str:
    return row.name


def _session(row: SessionReport) -> int:
    return row.id


def _user(row: UserReport) -> str:
    return row.name


def _different(
    before: Iterable[_Row], after: Iterable[_Row], key: Callable[[_Row], Any]
) -> tuple[_Row, ...]:
    known = {key(row): row for row in before}
    return tuple(row for row in after if known.get(key(row)) != row)


def _gone(
    before: Iterable[_Row], after: Iterable[_Row], key: Callable[[_Row], Any]
) -> tuple[Any, ...]:
    left = {key(row) for row in after}
    return tuple(found for row in before if (found := key(row)) not in left)


def _merged(
    rows: tuple[_Row, ...],
    different: Sequence[_Row],
    gone: Sequence[Any],
    key: Callable[[_Row], Any],
) -> tuple[_Row, ...]:
    if not different and not gone:
        return rows
    left = {key(row): row for row in rows}
    for name in gone:
        left.pop(name, None)
    return tuple((left | {key(row): row for row in different}).values())


def _sorted(
    rows: tuple[_Row, ...],
    different: Sequence[_Row],
    gone: Sequence[Any],
    key: Callable[[_Row], Any],
) -> tuple[_Row, ...]:
    merged = _merged(rows, different, gone, key)
    return merged if merged is rows else tuple(sorted(merged, key=key))
