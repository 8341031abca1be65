"""What an executor tells a session."""

from typing import Annotated

import msgspec

from jgpu.wire import limits
from jgpu.wire.fields import Ids, Name, Natural, Text
from jgpu.wire.messages.parts import (
    DeviceFacts,
    Hash,
    Message,
    TensorReport,
)
from jgpu.wire.program import Geometry

__all__ = [
    "Ack",
    "Chosen",
    "DefinitionUnknown",
    "Downloaded",
    "Failed",
    "Learnt",
    "MemoryIs",
    "Notice",
    "Probed",
    "Ready",
    "Resync",
    "RngIs",
    "Synced",
    "Value",
    "Waiting",
    "WorksDone",
]


class Ready(Message, frozen=True):
    """The executor has the session; the first message it sends, and again when `limit` changes.

    `limit`: bytes that the session's user may use, 0 for no limit but the device's capacity.
    """

    device: DeviceFacts
    limit: Natural


class Ack(Message, frozen=True):
    """Nothing but the acknowledgement in the frame's header, and arena bytes given back.

    `arena`: total upload bytes of the arena that the executor has copied out since the start.
    """

    arena: Natural = 0


class Learnt(Message, frozen=True):
    """What a program's ops really returned where that differs from the definition, or, for a run
    with `report`, of every output. No reply.
    """

    work: Natural
    program: Hash
    tensors: tuple[TensorReport, ...]


class DefinitionUnknown(Message, frozen=True):
    """The executor dropped this definition: `work` was not run; define and run again. No reply.

    Everything after `work` of this session waits for it.
    """

    work: Natural
    program: Hash


class Downloaded(Message, frozen=True):
    """The bytes of a Download, or None when they are in the arena."""

    request: Natural
    data: Annotated[bytes, msgspec.Meta(max_length=limits.INLINE_BYTES)] | None = None


class Value(Message, frozen=True):
    """What a wanted buffer holds after the run that made it; empty: it has to be asked for."""

    buffer: Natural
    data: Annotated[bytes, msgspec.Meta(max_length=limits.WANTED_BYTES)]


class Synced(Message, frozen=True):
    """All work before the request is done; `at_ns` on the host's monotonic clock, 0 if unknown."""

    request: Natural
    at_ns: Natural = 0


class Probed(Message, frozen=True):
    """Geometries of the op's tensor returns in order (None: undefined or an input itself).

    With `error`: the exception's type name and its text, raised on the user's line; by the name
    TOO_LARGE nothing foretells it, and only the run can tell.
    """

    request: Natural
    outputs: tuple[Geometry | None, ...] = ()
    error: tuple[Name, Text] | None = None


class Chosen(Message, frozen=True):
    """What the device would do by itself: answers ChooseAttention, ChooseNorm and LayOutWeights.

    With `error`: the exception's type name and its text, raised on the user's line.
    """

    request: Natural
    numbers: Annotated[tuple[Natural, ...], msgspec.Meta(max_length=limits.MAX_WEIGHTS + 1)] = ()
    error: tuple[Name, Text] | None = None


class RngIs(Message, frozen=True):
    """A generator's state: opaque bytes of the executor's kind of device."""

    request: Natural
    state: Annotated[bytes, msgspec.Meta(max_length=limits.INLINE_BYTES)]


class MemoryIs(Message, frozen=True):
    """Bytes: free and total for this session's user, the session's own use and peak."""

    request: Natural
    free: Natural
    total: Natural
    used: Natural
    peak: Natural


class Failed(Message, frozen=True):
    """Work failed on the device. Reported once per failure, before the next reply.

    `op` is the index in the program, `error` the exception's type name, `buffers` what is
    poisoned: outputs of that op and of all that used them.
    """

    work: Natural
    op: Natural
    name: Name
    error: Name
    text: Text
    buffers: Ids
    request: Natural | None = None


class WorksDone(Message, frozen=True):
    """Works up to this number are done; only where the client asked (`ReportProgress`)."""

    work: Natural


class Waiting(Message, frozen=True):
    """The session waits (for memory or its turn); for whom, in the users' eyes. No reply."""

    waits_for: tuple[Name, ...]


class Notice(Message, frozen=True):
    """A sentence for the user, to be shown once in the cell that runs, or the next. No reply."""

    text: Text


class Resync(Message, frozen=True):
    """A (new) executor has the descriptor: send `Resynced`, then again what was not acknowledged.

    `lost`: the session's tensors are gone; `text` says why. Where `work` is not 0, op `op` of that
    work of the session ended the executor.
    """

    epoch: Natural
    lost: bool = False
    text: Text = ""
    work: Natural = 0
    op: Natural = 0
