"""The ledger's tables, by SQLAlchemy: SQLite in a file, or whatever server the URL names.

Everything here blocks and belongs to the ledger's own thread. A transaction is one call. Rows are
absolute and written as "delete, then insert", which every database understands, so that a write
that may or may not have reached the disk is simply made again.

Invariant: nothing is ever destroyed. A SQLite file that is none is moved aside, under a name that
says when.
"""

import sqlite3
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.exc import ArgumentError, DatabaseError, NoSuchModuleError, SQLAlchemyError

from jgpu.broker.control.quotas.ledger.entries import (
    event_table,
    forget_events,
    read_events,
    read_usage,
    write_events,
)
from jgpu.broker.control.quotas.ledger.meter import SLICE_S, Charge
from jgpu.broker.control.quotas.ledger.problems import (
    LedgerBroken,
    LedgerProblem,
    SettingKey,
    StoredSetting,
)
from jgpu.errors import ConfigError
from jgpu.wire.limits import MAX_NAME
from jgpu.wire.reports.records import EventReport

__all__ = ["LedgerContent", "Store", "check_url"]

_LOCK_TIMEOUT_S: Final = 2.0
_CONNECT_TIMEOUT_S: Final = 5
#: rows of one statement
_BATCH: Final = 500
_BROKEN: Final = (sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT)

_METADATA = sa.MetaData()
CHARGES = sa.Table(
    "jgpu_charges",
    _METADATA,
    sa.Column("run", sa.String(32), primary_key=True),
    sa.Column("session", sa.Integer, primary_key=True),
    sa.Column("slice", sa.BigInteger, primary_key=True),
    sa.Column("user", sa.String(MAX_NAME), primary_key=True),
    sa.Column("device", sa.String(256), nullable=False),
    sa.Column("kernel_id", sa.String(256), nullable=False),
    sa.Column("start", sa.Float(53), nullable=False),
    sa.Column("end", sa.Float(53), nullable=False, index=True),
    sa.Column("device_seconds", sa.Float(53), nullable=False),
)
SETTINGS = sa.Table(
    "jgpu_quotas",
    _METADATA,
    sa.Column("kind", sa.String(8), primary_key=True),
    sa.Column("name", sa.String(MAX_NAME), primary_key=True),
    sa.Column("field", sa.String(16), primary_key=True),
    sa.Column("value", sa.String(64), nullable=False),
)
#: what was set until a moment, besides; a table of its own, which older ledgers get when opened
TIMED_SETTINGS = sa.Table(
    "jgpu_timed_quotas",
    _METADATA,
    sa.Column("kind", sa.String(8), primary_key=True),
    sa.Column("name", sa.String(MAX_NAME), primary_key=True),
    sa.Column("field", sa.String(16), primary_key=True),
    sa.Column("value", sa.String(64), nullable=False),
    sa.Column("until", sa.Float(53), nullable=False),
)
EVENTS = event_table(_METADATA)


@dataclass(frozen=True, slots=True)
class LedgerContent:
    """What a ledger held when it was opened."""

    #: (user, end, device-seconds) since the time that was asked for
    usage: list[tuple[str, float, float]] = field(default_factory=list)
    #: what was set live
    settings: dict[SettingKey, StoredSetting] = field(default_factory=dict)


def check_url(url: str) -> None:
    """Raise `ConfigError` for a URL that no ledger can have, or whose driver is not installed."""
    try:
        sa.create_engine(url)
    except (ArgumentError, NoSuchModuleError, ImportError, ValueError, TypeError) as error:
        said = str(error).partition("\n")[0]
        raise ConfigError(
            f"ledger is {_without_password(url)!r}, which SQLAlchemy cannot use: {said}"
        ) from None


def _without_password(url: str) -> str:
    try:
        return sa.make_url(url).render_as_string(hide_password=True)
    except (ArgumentError, ValueError):
        return url


class Store:
    """One ledger; every method may raise `LedgerProblem`."""

    def __init__(self, url: str) -> None:
        self._url = sa.make_url(url)
        #: without its password, for people
        self.shown = self._url.render_as_string(hide_password=True)
        self._engine: sa.Engine | None = None

    # -- for the ledger ----------------------------------------------------------------------

    def open(self, since: float) -> LedgerContent:
        """Make the tables where there are none; what was used since then, and what was set.

        Of the slice that `since` lies in, all.
        """
        since = since // SLICE_S * SLICE_S
        with _Trouble(self):
            engine = self._connected()
            _METADATA.create_all(engine)
            with engine.connect() as connection:
                usage = connection.execute(
                    sa.select(CHARGES.c.user, CHARGES.c.end, CHARGES.c.device_seconds).where(
                        CHARGES.c.end >= since
                    )
                ).all()
                lasting = connection.execute(sa.select(SETTINGS)).all()
                timed = connection.execute(sa.select(TIMED_SETTINGS)).all()
        settings = {
            SettingKey(row.kind, row.name, row.field): StoredSetting(row.value) for row in lasting
        }
        settings |= {
            SettingKey(row.kind, row.name, row.field, timed=True): StoredSetting(
                row.value, row.until
            )
            for row in timed
        }
        return LedgerContent([(row.user, row.end, row.device_seconds) for row in usage], settings)

    def usage_since(self, since: float) -> list[tuple[str, float, float]]:
        """(user, end, device-seconds) of all charges since a time."""
        return self.open(since).usage

    def usage(
        self, since: int, until: int, step: int, user: str, most: int
    ) -> list[tuple[int, str, float]]:
        """(number of the step, user, device-seconds) between two times; see `read_usage`."""
        with _Trouble(self), self._connected().connect() as connection:
            return read_usage(connection, CHARGES, since, until, step, user, most)

    def events(self, before: int, limit: int, user: str = "") -> list[EventReport]:
        """The newest events, with lower numbers than `before`, and of one user, where they say."""
        with _Trouble(self), self._connected().connect() as connection:
            return read_events(connection, EVENTS, before, limit, user)

    def forget_events(self, since: float, most: int) -> None:
        """Drop events from before a time, and the oldest of those that are too many."""
        with _Trouble(self), self._connected().begin() as connection:
            forget_events(connection, EVENTS, since, most)

    def write(
        self,
        charges: Iterable[Charge],
        settings: Mapping[SettingKey, StoredSetting | None],
        events: Iterable[EventReport] = (),
    ) -> None:
        """Write rows, all or none; a setting of None is taken out."""
        rows = [asdict(charge) for charge in charges]
        with _Trouble(self), self._connected().begin() as connection:
            for start in range(0, len(rows), _BATCH):
                _replace(connection, CHARGES, rows[start : start + _BATCH])
            for key, setting in settings.items():
                _set(connection, key, setting)
            write_events(connection, EVENTS, events)

    def close(self) -> None:
        """Let go of connections."""
        if self._engine is not None:
            self._engine.dispose()
            self._engine = None

    # -- connections -------------------------------------------------------------------------

    def _connected(self) -> sa.Engine:
        if self._engine is None:
            options: dict[str, Any] = {}
            if self._url.get_backend_name() == "sqlite":
                # A connection a call: no lock outlives it, and a file moved aside is let go of.
                options["poolclass"] = sa.NullPool
                options["connect_args"] = {"timeout": _LOCK_TIMEOUT_S}
            else:
                options |= {"pool_size": 1, "max_overflow": 1, "pool_pre_ping": True}
                if self._url.get_driver_name().startswith("psycopg"):
                    options["connect_args"] = {"connect_timeout": _CONNECT_TIMEOUT_S}
            self._engine = sa.create_engine(self._url, **options)
        return self._engine

    @property
    def file(self) -> Path | None:
        """The SQLite file, where the ledger is one."""
        name = self._url.database
        if self._url.get_backend_name() != "sqlite" or not name or name == ":memory:":
            return None
        return Path(name)

    def move_aside(self) -> Path | None:
        """Give a broken file another name, with what SQLite keeps beside it; its new name."""
        file = self.file
        if file is None:
            return None
        self.close()
        stamp = time.strftime("%Y%m%d-%H%M%S")
        target = file.with_name(f"{file.name}.broken-{stamp}")
        number = 1
        while target.exists():
            number += 1
            target = file.with_name(f"{file.name}.broken-{stamp}-{number}")
        file.rename(target)
        for suffix in ("-journal", "-wal", "-shm"):
            beside = file.with_name(file.name + suffix)
            with suppress(FileNotFoundError):
                beside.rename(target.with_name(target.name + suffix))
        return target


class _Trouble:
    """Turns what databases raise into `LedgerProblem`, and moves a broken file aside."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if isinstance(error, DatabaseError) and _is_broken(error.orig):
            try:
                target = self._store.move_aside()
            except OSError as failed:
                raise LedgerProblem(f"{_said(error)}; and it cannot be moved: {failed}") from None
            if target is not None:
                raise LedgerBroken(f"{_said(error)}; the file is {target} now") from None
        if isinstance(error, SQLAlchemyError | ImportError | OSError):
            raise LedgerProblem(_said(error)) from None


def _is_broken(error: BaseException | None) -> bool:
    code = getattr(error, "sqlite_errorcode", None)
    return code is not None and code & 0xFF in _BROKEN


def _said(error: BaseException) -> str:
    """The database's own words, on one line."""
    cause = getattr(error, "orig", None) or error
    return " ".join(str(cause).split())[:300] or type(cause).__name__


def _same_row(table: sa.Table, row: Mapping[str, Any]) -> sa.ColumnElement[bool]:
    return sa.and_(*(column == row[column.name] for column in table.primary_key.columns))


def _set(connection: sa.Connection, key: SettingKey, setting: StoredSetting | None) -> None:
    table = TIMED_SETTINGS if key.timed else SETTINGS
    row: dict[str, Any] = {"kind": key.kind, "name": key.name, "field": key.field}
    connection.execute(sa.delete(table).where(_same_row(table, row)))
    if setting is not None:
        row |= {"value": setting.text} | ({"until": setting.until} if key.timed else {})
        connection.execute(sa.insert(table), [row])


def _replace(connection: sa.Connection, table: sa.Table, rows: list[dict[str, Any]]) -> None:
    columns = list(table.primary_key.columns)
    gone = sa.and_(*(column == sa.bindparam(f"old_{column.name}") for column in columns))
    old = [{f"old_{column.name}": row[column.name] for column in columns} for row in rows]
    connection.execute(sa.delete(table).where(gone), old)
    connection.execute(sa.insert(table), rows)
