"""What the control process has an executor do."""

from typing import Annotated

import msgspec

from jgpu.wire import limits
from jgpu.wire.fields import Name, Natural, Text
from jgpu.wire.messages.parts import Hash, Message

__all__ = [
    "Adopt",
    "AskReport",
    "Detach",
    "Follow",
    "RefusePrograms",
    "RefusedProgram",
    "RetireLane",
    "SetUser",
    "Suspect",
    "Tell",
    "TryAlone",
]


class Adopt(Message, frozen=True):
    """A session; its socket's and its arena's descriptors come with the frame. No reply.

    `epoch` > 0: the descriptor was another executor's; begin with Resync, which says `lost`,
    `lost_work` and `lost_op`.
    """

    session: Natural
    user: Name
    label: Text
    arena: Natural
    token: bytes
    weight: float = 1.0
    limit: Natural = 0
    epoch: Natural = 0
    #: 0 interactive, 1 normal, 2 batch
    priority: Annotated[int, msgspec.Meta(ge=0, le=2)] = 1
    #: whose limits the session counts for; empty: the user's
    identity: Name = ""
    #: how the executor before ended, in words for this session; its work and op where it was these
    lost: Text = ""
    lost_work: Natural = 0
    lost_op: Natural = 0


class SetUser(Message, frozen=True):
    """What a user may have from here on; comes before their first session and at changes. No reply.

    `limit` and `resident_limit`: bytes of all their sessions together, and those of models among
    them; 0 for no limit. `throttled`: their work runs only where the device would idle. `refusal`:
    why new work of theirs is refused, empty where it is not; `refused_as`: the error's name.
    """

    user: Name
    weight: float = 1.0
    limit: Natural = 0
    resident_limit: Natural = 0
    throttled: bool = False
    refusal: Text = ""
    refused_as: Name = "BudgetExceeded"


class RefusedProgram(msgspec.Struct, frozen=True, array_like=True):
    """A program, or what is probed, that has ended executors at its op `op`.

    `users`: whose runs of it are refused; none: everybody's.
    """

    program: Hash
    text: Text
    op: Natural = 0
    name: Name = ""
    users: Annotated[tuple[Name, ...], msgspec.Meta(max_length=limits.MAX_REFUSED)] = ()


class RefusePrograms(Message, frozen=True):
    """All programs that are not run any more, in place of those told before. No reply."""

    programs: Annotated[tuple[RefusedProgram, ...], msgspec.Meta(max_length=limits.MAX_REFUSED)]


class Suspect(msgspec.Struct, frozen=True, array_like=True):
    """A program, or what is probed, that may have broken the device.

    `through`: users whose runs of it have gone through alone.
    """

    program: Hash
    through: Annotated[tuple[Name, ...], msgspec.Meta(max_length=limits.MAX_REFUSED)] = ()


class TryAlone(Message, frozen=True):
    """All programs that have the device alone while they run, in place of those told before.

    Each run of it that goes through is told of by `WentThrough`. No other reply.
    """

    programs: Annotated[tuple[Suspect, ...], msgspec.Meta(max_length=limits.MAX_REFUSED)]


class Tell(Message, frozen=True):
    """A sentence for the user of a session, passed on as `Notice`. No reply."""

    session: Natural
    text: Text


class Detach(Message, frozen=True):
    """Drop the session: its process is gone or its seat was given up. Reply: SessionEnded."""

    session: Natural
    text: Text = ""


class RetireLane(Message, frozen=True):
    """Give up a lane that is at a work of this session, which does not end. No reply.

    A session that lives is ended with this sentence. Nothing happens where the lane is at something
    else by now.
    """

    lane: Natural
    session: Natural
    text: Text = ""


class AskReport(Message, frozen=True):
    """Reply: ReportIs."""

    request: Natural


class Follow(Message, frozen=True):
    """Somebody watches, or nobody any more: ReportIs, with request 0, whenever something changed.

    At most ten times a second. No other reply.
    """

    on: bool = True
