"""What a session asks of its executor."""

from typing import Annotated

import msgspec

from jgpu.wire import limits
from jgpu.wire.fields import Ids, Natural, Text
from jgpu.wire.messages.parts import (
    Hash,
    Kernel,
    Message,
    Number,
    Width,
)
from jgpu.wire.program import Flags, Geometry, Op

__all__ = [
    "Cancel",
    "CellEnded",
    "CellStarted",
    "ChooseAttention",
    "ChooseNorm",
    "Define",
    "Download",
    "Free",
    "GetRng",
    "IterationEnded",
    "LayOutWeights",
    "Loop",
    "Memory",
    "Probe",
    "Quit",
    "ReportProgress",
    "Resynced",
    "Run",
    "Seed",
    "SetRng",
    "Sync",
    "Tag",
    "Upload",
]


class Define(Message, frozen=True):
    """A program's canonical bytes (`jgpu.wire.program`). No reply; a bad one is Failed."""

    program: Annotated[bytes, msgspec.Meta(max_length=limits.MAX_FRAME_BYTES)]


class Run(Message, frozen=True):
    """Run a defined program. No reply, unless `report`: then Learnt with every output's geometry.

    `inputs`: a buffer per input slot. `first`: id of the first fresh slot's buffer, the others
    follow. `live`: one bit a fresh slot, least significant bit first, 0 where nobody needs it
    after the run. `dead`: one bit an input slot, 1 where the session drops the buffer after its
    last use here. `free`: buffers dropped before the run. `ends_iteration`: the client's claim of
    a boundary. `work` numbers the session's works, from 1, without gaps. `wanted`: live fresh
    slots of a few bytes that the host is likely to read: each is told by a Value once the run is
    over (not where the run fails).
    """

    work: Natural
    program: Hash
    inputs: Ids
    first: Natural
    live: Annotated[bytes, msgspec.Meta(max_length=limits.MAX_SLOTS // 8)]
    dead: Annotated[bytes, msgspec.Meta(max_length=limits.MAX_SLOTS // 8)] = b""
    params: Annotated[tuple[Number, ...], msgspec.Meta(max_length=limits.MAX_SLOTS)] = ()
    free: Ids = ()
    ends_iteration: bool = False
    report: bool = False
    wanted: Annotated[tuple[Natural, ...], msgspec.Meta(max_length=limits.MAX_WANTED)] = ()


class Upload(Message, frozen=True):
    """Bytes for a buffer, made at `size` bytes with its first piece (offset 0). No reply but Ack.

    The bytes are `data`, or `count` bytes of the arena at `arena`; the arena's are the client's
    again when `Synced` or an `Ack` with `arena` says so.
    """

    work: Natural
    buffer: Natural
    size: Natural
    offset: Natural = 0
    data: Annotated[bytes, msgspec.Meta(max_length=limits.INLINE_BYTES)] | None = None
    arena: Natural = 0
    count: Natural = 0


class Download(Message, frozen=True):
    """`count` bytes of a buffer from `offset`. Reply: Downloaded, after all earlier work.

    With `arena` the bytes go there, else they come in the reply (`count` <= INLINE_BYTES).
    """

    work: Natural
    request: Natural
    buffer: Natural
    offset: Natural
    count: Natural
    arena: Natural | None = None
    ends_iteration: bool = True


class Sync(Message, frozen=True):
    """Reply: Synced, when all work sent before is done (`torch.cuda.synchronize`)."""

    work: Natural
    request: Natural
    ends_iteration: bool = True


class Free(Message, frozen=True):
    """Buffers that the session needs no more, after all earlier work. No reply."""

    buffers: Ids


class Tag(Message, frozen=True):
    """What buffers are: EPHEMERAL or RESIDENT. No reply."""

    buffers: Ids
    kind: Annotated[int, msgspec.Meta(ge=0, le=1)]


class Probe(Message, frozen=True):
    """What would this op return? Runs on scratch tensors of these geometries, out of order, at
    once, without the session's data. `op` has slots 0..n-1 for tensors of `inputs`, views equal to
    slots. Reply: Probed. Answers are shared by all sessions.
    """

    request: Natural
    op: Op
    inputs: tuple[Geometry, ...]
    params: tuple[Number, ...] = ()
    flags: Flags = Flags()


class ChooseAttention(Message, frozen=True):
    """Which attention kernel would the device itself take for such tensors? Out of order, at once.

    Reply: Chosen, with one number of torch's `SDPBackend`.
    """

    request: Natural
    query: Geometry
    key: Geometry
    value: Geometry
    mask: Geometry | None
    dropout: float
    causal: bool
    scale: float | None
    #: heads of key and value may serve several of the query
    grouped: bool
    #: whether gradients are wanted of query, key, value and mask
    differentiated: tuple[bool, bool, bool, bool]
    #: kernels that the notebook allows, and all kernels in the order that it prefers; without,
    #: in the order that torch has on the device
    allowed: Annotated[tuple[Kernel, ...], msgspec.Meta(max_length=16)]
    preferred: Annotated[tuple[Kernel, ...], msgspec.Meta(max_length=16)]
    flags: Flags = Flags()


class ChooseNorm(Message, frozen=True):
    """Which batch norm would the device itself take for such tensors? Out of order, at once.

    Reply: Chosen, with torch's number of the implementation: 0 its own, 1 cuDNN's.
    """

    request: Natural
    input: Geometry
    weight: Geometry | None
    bias: Geometry | None
    running_mean: Geometry | None
    running_var: Geometry | None
    training: bool
    epsilon: float
    flags: Flags = Flags()


class LayOutWeights(Message, frozen=True):
    """How does the device's library pack a recurrent layer's weights? Out of order, at once.

    Reply: Chosen, with the elements of the whole buffer and the place of each weight in it; without
    numbers where torch would not use the library for such weights.
    """

    request: Natural
    weights: Annotated[tuple[Geometry, ...], msgspec.Meta(max_length=limits.MAX_WEIGHTS)]
    #: weights of one layer in one direction
    each: Annotated[int, msgspec.Meta(ge=2, le=5)]
    features: Width
    #: cuDNN's number of the cell: relu, tanh, lstm, gru
    mode: Annotated[int, msgspec.Meta(ge=0, le=3)]
    hidden: Width
    #: size of an LSTM's projections, 0 without
    projection: Width
    layers: Annotated[int, msgspec.Meta(ge=1, le=limits.MAX_LAYERS)]
    bidirectional: bool
    flags: Flags = Flags()


class Seed(Message, frozen=True):
    """Seeds generator `index` of the session (0: the default one). No reply."""

    work: Natural
    #: the low 64 bits of the seed, as a signed number
    value: Annotated[int, msgspec.Meta(ge=-(1 << 63), le=(1 << 63) - 1)]
    index: Natural = 0


class GetRng(Message, frozen=True):
    """Reply: RngIs with the generator's state after all earlier work."""

    work: Natural
    request: Natural
    index: Natural = 0


class SetRng(Message, frozen=True):
    """Sets a generator's state from bytes that RngIs gave. No reply."""

    work: Natural
    state: Annotated[bytes, msgspec.Meta(max_length=limits.INLINE_BYTES)]
    index: Natural = 0


class Memory(Message, frozen=True):
    """Reply: MemoryIs, at once (not after earlier work).

    `reset_peak`: the session's peak counts anew from here.
    """

    request: Natural
    reset_peak: bool = False


class CellStarted(Message, frozen=True):
    """A notebook cell begins. No reply."""

    label: Text = ""


class IterationEnded(Message, frozen=True):
    """What was sent is a whole iteration, which its last run did not say. No reply."""


class CellEnded(Message, frozen=True):
    """A notebook cell ended; what was sent is a whole iteration. No reply."""

    #: it raised: what it made is kept by a traceback at most
    failed: bool = False


class Loop(Message, frozen=True):
    """How many iterations the running loops will still do, by the notebook's lines. No reply."""

    left: Natural


class ReportProgress(Message, frozen=True):
    """Say with `WorksDone` how far the session is: now, and whenever so many ops more are done.

    No other reply. `ops`: at least 1.
    """

    ops: Annotated[int, msgspec.Meta(ge=1, le=limits.MAX_OPS)]


class Cancel(Message, frozen=True):
    """Stop what runs at its next op and take back all else; an iteration that has written resident
    buffers is finished first, and so are works up to number `since`. Reply: Failed with error
    "WorkCancelled" for what was not finished, if anything was; then Synced for `request`.
    """

    request: Natural
    since: Natural = 0


class Resynced(Message, frozen=True):
    """The client has seen Resync; frames that were not acknowledged follow. No reply."""

    epoch: Natural


class Quit(Message, frozen=True):
    """The session ends in good order. No reply."""
