"""What the control process answers."""

from typing import Annotated

import msgspec

from jgpu.wire import limits
from jgpu.wire.fields import Name, Natural, Text
from jgpu.wire.messages.parts import Message

__all__ = [
    "Done",
    "EventsAre",
    "QuotasAre",
    "Refused",
    "SeatTaken",
    "SocketIs",
    "SocketsAre",
    "StatusChanged",
    "StatusIs",
    "Stopping",
    "UsageIs",
    "Welcome",
]


class Welcome(Message, frozen=True):
    """The session is admitted; from here the executor speaks on this descriptor.

    `token`: 16 random bytes that mark where a resynchronised stream begins.
    """

    session: Natural
    user: Name
    token: Annotated[bytes, msgspec.Meta(min_length=16, max_length=16)]


class Refused(Message, frozen=True):
    """No. `reason` is a stable word (an `errors` class's), `text` the sentence for the user."""

    reason: Name
    text: Text


class SeatTaken(Message, frozen=True):
    """The seat's ticket, for the kernel's environment."""

    ticket: Name


class StatusIs(Message, frozen=True):
    """JSON text of a `Report`, which readers of other versions read, too."""

    json: Annotated[bytes, msgspec.Meta(max_length=limits.MAX_FRAME_BYTES)]


class StatusChanged(Message, frozen=True):
    """JSON text of a `Changes` of the report: what is different from what was told before."""

    json: Annotated[bytes, msgspec.Meta(max_length=limits.MAX_FRAME_BYTES)]


class EventsAre(Message, frozen=True):
    """JSON text of a `jgpu.wire.reports.records.EventsReport`."""

    json: Annotated[bytes, msgspec.Meta(max_length=limits.MAX_FRAME_BYTES)]


class UsageIs(Message, frozen=True):
    """JSON text of a `jgpu.wire.reports.records.UsageReport`."""

    json: Annotated[bytes, msgspec.Meta(max_length=limits.MAX_FRAME_BYTES)]


class QuotasAre(Message, frozen=True):
    """JSON text of a `jgpu.wire.reports.report.QuotasReport`."""

    json: Annotated[bytes, msgspec.Meta(max_length=limits.MAX_FRAME_BYTES)]


class SocketIs(Message, frozen=True):
    """Where a server's socket is; the directory that it lies in is what is mounted."""

    path: Text


class SocketsAre(Message, frozen=True):
    """Names of servers."""

    servers: Annotated[tuple[Name, ...], msgspec.Meta(max_length=limits.MAX_SLOTS)]


class Done(Message, frozen=True):
    """What was asked for was done, or was ordered; the sentence says what."""

    text: Text


class Stopping(Message, frozen=True):
    """The broker is about to end."""
