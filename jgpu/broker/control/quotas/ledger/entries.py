"""The ledger's table of events, and what is asked of it and of the charges.

Functions on a connection; who owns it, and what becomes of errors, is the store's affair.
"""

from collections.abc import Iterable

import msgspec
import sqlalchemy as sa

from jgpu.broker.control.quotas.ledger.meter import SLICE_S
from jgpu.wire.reports.records import EventReport

__all__ = ["event_table", "forget_events", "read_events", "read_usage", "write_events"]


def event_table(metadata: sa.MetaData) -> sa.Table:
    """The table of events, whose numbers grow with time."""
    return sa.Table(
        "jgpu_events",
        metadata,
        sa.Column("id", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("when", sa.Float(53), nullable=False),
        sa.Column("who", sa.String(256), nullable=False),
        sa.Column("identity", sa.String(256), nullable=False),
        sa.Column("door", sa.String(16), nullable=False),
        sa.Column("kind", sa.String(16), nullable=False),
        sa.Column("about", sa.String(256), nullable=False),
        sa.Column("text", sa.Text, nullable=False),
    )


def write_events(connection: sa.Connection, table: sa.Table, events: Iterable[EventReport]) -> None:
    """Write events; those that are there already are replaced by themselves."""
    rows = [msgspec.structs.asdict(event) for event in events]
    if rows:
        gone = table.c.id == sa.bindparam("old_id")
        connection.execute(sa.delete(table).where(gone), [{"old_id": row["id"]} for row in rows])
        connection.execute(sa.insert(table), rows)


def read_events(
    connection: sa.Connection, table: sa.Table, before: int, limit: int, user: str
) -> list[EventReport]:
    """The newest with a lower number (0: of all), of one user or of everybody."""
    chosen = sa.select(table).order_by(table.c.id.desc()).limit(limit)
    if before:
        chosen = chosen.where(table.c.id < before)
    if user:
        chosen = chosen.where(sa.or_(table.c.who == user, table.c.about == user))
    return [EventReport(**row._mapping) for row in connection.execute(chosen)]


def forget_events(connection: sa.Connection, table: sa.Table, since: float, most: int) -> None:
    """Drop events from before a time, and the oldest of those that are too many."""
    connection.execute(sa.delete(table).where(table.c.when < since))
    too_old = sa.select(table.c.id).order_by(table.c.id.desc()).offset(most).limit(1)
    if (last := connection.execute(too_old).scalar()) is not None:
        connection.execute(sa.delete(table).where(table.c.id <= last))


def read_usage(
    connection: sa.Connection,
    charges: sa.Table,
    since: int,
    until: int,
    step: int,
    user: str,
    most: int,
) -> list[tuple[int, str, float]]:
    """(number of the step, user, device-seconds), so many rows at most.

    Time counts for the step in which its slice begins; one that is older than all steps, and not
    over before them, counts for the first.
    """
    # In whole numbers, whose division all databases agree on.
    begin = charges.c.slice * SLICE_S
    number = sa.case((begin < since, 0), else_=(begin - since) // step).label("number")
    chosen = (
        sa.select(number, charges.c.user, sa.func.sum(charges.c.device_seconds))
        .where(charges.c.slice >= since // SLICE_S, begin < until)
        .group_by(number, charges.c.user)
        .order_by(number, charges.c.user)
        .limit(most)
    )
    if user:
        chosen = chosen.where(charges.c.user == user)
    return [(int(row[0]), row[1], float(row[2])) for row in connection.execute(chosen)]
