"""What a broker keeps on record, as it is told: what happened, and who used how much.

Read by the command line and the pages. Fields are added only, each with a default, as in a report.
Moments are seconds since the epoch.
"""

from typing import Final

from jgpu.wire.fields import Name, Natural, Text
from jgpu.wire.reports.parts import ReportPart, decode_json

__all__ = [
    "EVENT_KINDS",
    "EventReport",
    "EventsReport",
    "UsageReport",
    "UsageRow",
    "decode_events",
    "decode_usage",
]

#: refused requests, tickets and names that were not believed, ends of executors, memory that was
#: moved, budgets that were used up, and what administrators and hubs did
EVENT_KINDS: Final = (
    "refusal",
    "ticket",
    "claim",
    "fault",
    "spill",
    "evict",
    "budget",
    "quota",
    "policy",
    "drain",
    "socket",
    "name",
    "start",
    "stop",
)


class EventReport(ReportPart, frozen=True):
    """Something that happened, and who did it."""

    #: grows with time; never used twice
    id: Natural
    when: float = 0.0
    #: the user who did it; empty: the broker itself
    who: Name = ""
    #: whose limits it counted for, such as "uid 1000"; only for administrators
    identity: Name = ""
    #: the door that they came by: users, administrators, owner or server
    door: Name = ""
    #: one of EVENT_KINDS
    kind: Name = ""
    #: the user whom it concerns, or the scope, server or uid
    about: Name = ""
    text: Text = ""


class EventsReport(ReportPart, frozen=True):
    """What happened, the newest first, as `jgpu events --json` prints it."""

    events: tuple[EventReport, ...] = ()
    #: a sentence, if something is missing
    note: Text = ""


class UsageRow(ReportPart, frozen=True):
    """Device time of one user or group within one step."""

    #: when the step begins
    start: float
    #: empty: users without a group
    name: Name
    device_seconds: float = 0.0


class UsageReport(ReportPart, frozen=True):
    """Who used how much, by step and then by name; steps of which nobody used anything are out."""

    rows: tuple[UsageRow, ...] = ()
    #: a sentence, if something is missing
    note: Text = ""


def decode_events(data: bytes, where: object = "?") -> EventsReport:
    """Read an answer about events; raises `ProtocolError` for what is none."""
    return decode_json(data, EventsReport, "record", where)


def decode_usage(data: bytes, where: object = "?") -> UsageReport:
    """Read an answer about usage; raises `ProtocolError` for what is none."""
    return decode_json(data, UsageReport, "record", where)
