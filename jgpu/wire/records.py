"""What a broker keeps on record, as it is told: what happened, and who used how much.

Read by the command line and the pages. Fields are added only, each with a default, as in a report.
Moments are seconds since the epoch.
"""

from typing import TypeVar

import msgspec

from jgpu.errors import ProtocolError
from jgpu.wire.fields import Name, Natural, Text

__all__ = [
    "EventReport",
    "EventsReport",
    "UsageReport",
    "UsageRow",
    "decode_events",
    "decode_usage",
]

_Kind = TypeVar("_Kind")


class _Part(msgspec.Struct, frozen=True, kw_only=True):
    """Base of all parts: an object with the names of its fields."""


class EventReport(_Part, frozen=True):
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
    #: refusal, ticket, fault, spill, evict, budget, quota, policy, drain, socket, name or stop
    kind: Name = ""
    #: the user whom it concerns, or the scope, server or uid
    about: Name = ""
    text: Text = ""


class EventsReport(_Part, frozen=True):
    """What happened, the newest first, as `jgpu events --json` prints it."""

    events: tuple[EventReport, ...] = ()
    #: a sentence, if something is missing
    note: Text = ""


class UsageRow(_Part, frozen=True):
    """Device time of one user or group within one step."""

    #: when the step begins
    start: float
    #: empty: users without a group
    name: Name
    device_seconds: float = 0.0


class UsageReport(_Part, frozen=True):
    """Who used how much, by step and then by name; steps of which nobody used anything are out."""

    rows: tuple[UsageRow, ...] = ()
    #: a sentence, if something is missing
    note: Text = ""


def decode_events(data: bytes, where: object = "?") -> EventsReport:
    """Read an answer about events; raises `ProtocolError` for what is none."""
    return _decode(data, EventsReport, where)


def decode_usage(data: bytes, where: object = "?") -> UsageReport:
    """Read an answer about usage; raises `ProtocolError` for what is none."""
    return _decode(data, UsageReport, where)


def _decode(data: bytes, kind: type[_Kind], where: object) -> _Kind:
    try:
        return msgspec.json.decode(data, type=kind)
    except msgspec.DecodeError as error:
        raise ProtocolError(
            f"The record of the broker at {where} cannot be read ({error}). Have the same version "
            "of jgpu here and there."
        ) from None
