"""The closed set of messages, grouped by direction; each says whether a reply follows.

Four conversations share one framing (`jgpu.wire.framing`):

* client -> control, on the well-known socket, one request and one reply, then either the socket
  closes or (after `Hello`/`Welcome`) the same descriptor belongs to an executor;
* client <-> executor, on that descriptor: the data path of a session;
* control <-> executor, on a private socket pair, descriptors beside the frames;
* anybody may be told `Refused` instead of a reply, after which the connection ends.

Ids: sessions are numbered by the broker; buffers, requests and works by the client, within its
session. Byte counts are bytes, times are seconds. There is no pickle and no open-ended dict.
"""

from typing import Annotated, Final, Literal, TypeAlias

import msgspec

from jgpu.wire import limits
from jgpu.wire.fields import Ids, Name, Natural, Text
from jgpu.wire.program import Flags, Geometry, Op
from jgpu.wire.reports.report import LaneReport, MeasuresReport, SessionReport

__all__ = [
    "Ack",
    "Adopt",
    "AskEvents",
    "AskQuotas",
    "AskReport",
    "AskSockets",
    "AskStatus",
    "AskStop",
    "AskUsage",
    "Cancel",
    "CellEnded",
    "CellStarted",
    "ChooseAttention",
    "Chosen",
    "ClientMessage",
    "ControlMessage",
    "ControlReply",
    "Define",
    "DefinitionUnknown",
    "Detach",
    "DeviceFacts",
    "Done",
    "Download",
    "Downloaded",
    "Drain",
    "EventsAre",
    "Evict",
    "ExecutorFailed",
    "ExecutorMessage",
    "ExecutorNotice",
    "ExecutorOrder",
    "ExecutorReady",
    "Failed",
    "Follow",
    "Free",
    "GetRng",
    "Hello",
    "HubQuota",
    "IterationEnded",
    "LayOutWeights",
    "Learnt",
    "LeaveSeat",
    "Loop",
    "MakeSocket",
    "Memory",
    "MemoryIs",
    "NameUser",
    "Notice",
    "Probe",
    "Probed",
    "Quit",
    "QuotasAre",
    "Ready",
    "RefusePrograms",
    "Refused",
    "RefusedProgram",
    "RemoveSocket",
    "ReportIs",
    "Resync",
    "Resynced",
    "RetireLane",
    "RngIs",
    "Run",
    "Runtime",
    "SeatTaken",
    "Seed",
    "SessionEnded",
    "SessionEnding",
    "SetQuota",
    "SetRng",
    "SetUser",
    "SocketIs",
    "SocketsAre",
    "Spilled",
    "StatusChanged",
    "StatusIs",
    "Stopping",
    "Sync",
    "Synced",
    "Tag",
    "TakeSeat",
    "Tell",
    "TensorReport",
    "Upload",
    "UsageIs",
    "UsePolicy",
    "Value",
    "Waiting",
    "Watch",
    "Welcome",
]

Hash: TypeAlias = Annotated[bytes, msgspec.Meta(min_length=16, max_length=16)]
Number: TypeAlias = bool | int | float | tuple[float, float]
#: one of torch's `SDPBackend`
Kernel: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=15)]
#: a number of features
Width: TypeAlias = Annotated[int, msgspec.Meta(ge=0, lt=1 << 31)]

#: `Tag.kind`: what a buffer is to its notebook (DESIGN: resident memory or not).
EPHEMERAL: Final = 0
RESIDENT: Final = 1
#: in `Probed.error`
TOO_LARGE: Final = "TooLarge"


class _Message(msgspec.Struct, frozen=True, array_like=True, tag=True, forbid_unknown_fields=True):
    """Base of all messages: an array whose first element is the type's name."""


# -- what several messages are made of -------------------------------------------------------


class Runtime(msgspec.Struct, frozen=True, array_like=True):
    """The interpreter and torch of one end; executors are keyed by (device, trust, runtime)."""

    python: Name
    torch: Name
    #: blake2b of the schemas of all aten ops, hex; equal schemas mean equal programs.
    schema: Name


class DeviceFacts(msgspec.Struct, frozen=True, array_like=True):
    """What a kernel may know of its device. `kind` is "cpu", "cuda" or "null"."""

    kind: Name
    name: Text
    capacity: Natural
    threads: Natural = 1
    capability: tuple[int, int] = (0, 0)
    multiprocessors: Natural = 0


class TensorReport(msgspec.Struct, frozen=True, array_like=True):
    """A tensor that an op really produced: output `index` of op `op` of the program."""

    op: Natural
    index: Natural
    geometry: Geometry | None
    nbytes: Natural = 0


# -- client -> control: one request, one reply -----------------------------------------------


class Hello(_Message, frozen=True):
    """Opens a session. Carries the arena's descriptor. Reply: Welcome or Refused, then Ready.

    `user` is believed at the administrators' socket and from a private broker's owner, `pid` only
    where the socket gives none.
    `ticket` is the seat that the kernel's provisioner took; `label` the notebook's path.
    """

    protocol: int
    runtime: Runtime
    pid: Natural
    ticket: Name = ""
    user: Name = ""
    label: Text = ""
    kernel_id: Name = ""
    priority: Name = ""
    arena: Natural = limits.ARENA_BYTES


class TakeSeat(_Message, frozen=True):
    """A kernel is about to start. Reply: SeatTaken or Refused."""

    protocol: int
    kernel_id: Name
    label: Text = ""
    user: Name = ""


class LeaveSeat(_Message, frozen=True):
    """The kernel is gone for good (`restart` false), or its tensors are. Reply: SeatTaken."""

    ticket: Name
    restart: bool = False


class AskStatus(_Message, frozen=True):
    """Reply: StatusIs."""


class Watch(_Message, frozen=True):
    """What AskStatus asks for, and then what changes of it. Reply: StatusIs, then StatusChanged.

    Until either end closes; the client sends nothing more. Refused where too many watch.
    """


class AskStop(_Message, frozen=True):
    """Ends the broker; only from its own uid or root. Reply: Stopping."""


class AskQuotas(_Message, frozen=True):
    """Who may have and who used how much. Reply: QuotasAre, with what the asker may see.

    `user`: this one alone; Refused if there is none, or if it is another and the asker may not.
    """

    user: Name = ""


class SetQuota(_Message, frozen=True):
    """Changes what a scope ("default", "group:NAME", "user:NAME") says; administrators only.

    `settings`: fields and values as people write them, "" to take out what was set live; without
    any, everything of the scope is taken out. `new`: the name needs not be known. `until`: the
    moment, in seconds since the epoch, at which it ends by itself; 0 for good. `trial`: nothing
    changes, whatever the reply. `by`: the user on whose behalf it is asked, for the record, if
    this one may speak for others. Reply: QuotasAre or Refused, and then nothing has changed.
    """

    scope: Name
    settings: Annotated[tuple[tuple[Name, Name], ...], msgspec.Meta(max_length=16)]
    new: bool = False
    until: float = 0.0
    trial: bool = False
    by: Name = ""


class HubQuota(_Message, frozen=True):
    """What a hub says of one of its groups, in place of what it said before; administrators only.

    Below what is set live, above the configuration; without settings it says nothing any more.
    Reply: Done, or Refused, and then nothing has changed.
    """

    group: Name
    settings: Annotated[tuple[tuple[Name, Name], ...], msgspec.Meta(max_length=16)] = ()


class Evict(_Message, frozen=True):
    """Have a session's memory go to the host at its next boundary, its model among it or not.

    From its own user or an administrator; comes back by itself with the session's next work.
    `by`: as in SetQuota. Reply: Done or Refused. Also an order to the executor, without a reply.
    """

    session: Natural
    resident: bool = True
    by: Name = ""


class UsePolicy(_Message, frozen=True):
    """Another scheduling policy decides from now on; administrators only. Reply: Done or Refused.

    `by`: as in SetQuota. Also an order to the executor, without a reply.
    """

    policy: Name
    by: Name = ""


class Drain(_Message, frozen=True):
    """No iteration begins from now on, or does again; administrators only. Reply: Done or Refused.

    `by`: as in SetQuota. Also an order to the executor, without a reply.
    """

    on: bool = True
    by: Name = ""


class AskEvents(_Message, frozen=True):
    """What happened, the newest first, as far as it concerns the asker. Reply: EventsAre.

    `before`: only what has a lower number; 0 for the newest. `user`: what concerns this one alone.
    """

    before: Natural = 0
    limit: Annotated[int, msgspec.Meta(ge=1, le=limits.MAX_EVENTS)] = 100
    user: Name = ""


class AskUsage(_Message, frozen=True):
    """Device time from `since` until `until` by steps, and by "user" or "group". Reply: UsageIs.

    In seconds since the epoch, and of a step. Others' only for administrators.
    """

    since: float
    until: float
    step: Annotated[float, msgspec.Meta(ge=limits.LEAST_STEP_S)]
    by: Literal["user", "group"] = "user"


class MakeSocket(_Message, frozen=True):
    """A socket for one server of a hub, whose user all are that come by it; administrators only.

    Reply: SocketIs or Refused. The same again, with other groups or not, gives the same socket.
    """

    server: Name
    user: Name
    groups: Annotated[tuple[Name, ...], msgspec.Meta(max_length=limits.MAX_GROUPS)] = ()


class RemoveSocket(_Message, frozen=True):
    """That server has ended; administrators only. Reply: Done, whether it had one, or Refused."""

    server: Name


class AskSockets(_Message, frozen=True):
    """Which servers have a socket; administrators only. Reply: SocketsAre or Refused."""


class NameUser(_Message, frozen=True):
    """Whose uid it is, by a hub's names; administrators only. Reply: Done or Refused.

    Without `user` it has the host's name again.
    """

    uid: Natural
    user: Name = ""
    groups: Annotated[tuple[Name, ...], msgspec.Meta(max_length=limits.MAX_GROUPS)] = ()


# -- control -> client -----------------------------------------------------------------------


class Welcome(_Message, frozen=True):
    """The session is admitted; from here the executor speaks on this descriptor.

    `token`: 16 random bytes that mark where a resynchronised stream begins.
    """

    session: Natural
    user: Name
    token: Annotated[bytes, msgspec.Meta(min_length=16, max_length=16)]


class Refused(_Message, frozen=True):
    """No. `reason` is a stable word (an `errors` class's), `text` the sentence for the user."""

    reason: Name
    text: Text


class SeatTaken(_Message, frozen=True):
    """The seat's ticket, for the kernel's environment."""

    ticket: Name


class StatusIs(_Message, frozen=True):
    """JSON text of a `Report`, which readers of other versions read, too."""

    json: Annotated[bytes, msgspec.Meta(max_length=limits.MAX_FRAME_BYTES)]


class StatusChanged(_Message, frozen=True):
    """JSON text of a `Changes` of the report: what is different from what was told before."""

    json: Annotated[bytes, msgspec.Meta(max_length=limits.MAX_FRAME_BYTES)]


class EventsAre(_Message, frozen=True):
    """JSON text of a `jgpu.wire.reports.records.EventsReport`."""

    json: Annotated[bytes, msgspec.Meta(max_length=limits.MAX_FRAME_BYTES)]


class UsageIs(_Message, frozen=True):
    """JSON text of a `jgpu.wire.reports.records.UsageReport`."""

    json: Annotated[bytes, msgspec.Meta(max_length=limits.MAX_FRAME_BYTES)]


class QuotasAre(_Message, frozen=True):
    """JSON text of a `jgpu.wire.reports.report.QuotasReport`."""

    json: Annotated[bytes, msgspec.Meta(max_length=limits.MAX_FRAME_BYTES)]


class SocketIs(_Message, frozen=True):
    """Where a server's socket is; the directory that it lies in is what is mounted."""

    path: Text


class SocketsAre(_Message, frozen=True):
    """Names of servers."""

    servers: Annotated[tuple[Name, ...], msgspec.Meta(max_length=limits.MAX_SLOTS)]


class Done(_Message, frozen=True):
    """What was asked for was done, or was ordered; the sentence says what."""

    text: Text


class Stopping(_Message, frozen=True):
    """The broker is about to end."""


# -- client -> executor ----------------------------------------------------------------------


class Define(_Message, frozen=True):
    """A program's canonical bytes (`jgpu.wire.program`). No reply; a bad one is Failed."""

    program: Annotated[bytes, msgspec.Meta(max_length=limits.MAX_FRAME_BYTES)]


class Run(_Message, frozen=True):
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


class Upload(_Message, frozen=True):
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


class Download(_Message, frozen=True):
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


class Sync(_Message, frozen=True):
    """Reply: Synced, when all work sent before is done (`torch.cuda.synchronize`)."""

    work: Natural
    request: Natural
    ends_iteration: bool = True


class Free(_Message, frozen=True):
    """Buffers that the session needs no more, after all earlier work. No reply."""

    buffers: Ids


class Tag(_Message, frozen=True):
    """What buffers are: EPHEMERAL or RESIDENT. No reply."""

    buffers: Ids
    kind: Annotated[int, msgspec.Meta(ge=0, le=1)]


class Probe(_Message, frozen=True):
    """What would this op return? Runs on scratch tensors of these geometries, out of order, at
    once, without the session's data. `op` has slots 0..n-1 for tensors of `inputs`, views equal to
    slots. Reply: Probed. Answers are shared by all sessions.
    """

    request: Natural
    op: Op
    inputs: tuple[Geometry, ...]
    params: tuple[Number, ...] = ()
    flags: Flags = Flags()


class ChooseAttention(_Message, frozen=True):
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
    #: kernels that the notebook allows, and all kernels in the order that it prefers
    allowed: Annotated[tuple[Kernel, ...], msgspec.Meta(max_length=16)]
    preferred: Annotated[tuple[Kernel, ...], msgspec.Meta(max_length=16)]
    flags: Flags = Flags()


class LayOutWeights(_Message, frozen=True):
    """How does the device's library pack a recurrent layer's weights? Out of order, at once.

    Reply: Chosen, with the elements of the whole buffer and the place of each weight in it; without
    numbers where torch would not use the library for such weights.
    """

    request: Natural
    weights: Annotated[tuple[Geometry, ...], msgspec.Meta(max_length=1024)]
    #: weights of one layer in one direction
    each: Annotated[int, msgspec.Meta(ge=2, le=5)]
    features: Width
    #: cuDNN's number of the cell: relu, tanh, lstm, gru
    mode: Annotated[int, msgspec.Meta(ge=0, le=3)]
    hidden: Width
    #: size of an LSTM's projections, 0 without
    projection: Width
    layers: Annotated[int, msgspec.Meta(ge=1, le=512)]
    bidirectional: bool
    flags: Flags = Flags()


class Seed(_Message, frozen=True):
    """Seeds generator `index` of the session (0: the default one). No reply."""

    work: Natural
    #: the low 64 bits of the seed, as a signed number
    value: Annotated[int, msgspec.Meta(ge=-(1 << 63), le=(1 << 63) - 1)]
    index: Natural = 0


class GetRng(_Message, frozen=True):
    """Reply: RngIs with the generator's state after all earlier work."""

    work: Natural
    request: Natural
    index: Natural = 0


class SetRng(_Message, frozen=True):
    """Sets a generator's state from bytes that RngIs gave. No reply."""

    work: Natural
    state: Annotated[bytes, msgspec.Meta(max_length=limits.INLINE_BYTES)]
    index: Natural = 0


class Memory(_Message, frozen=True):
    """Reply: MemoryIs, at once (not after earlier work).

    `reset_peak`: the session's peak counts anew from here.
    """

    request: Natural
    reset_peak: bool = False


class CellStarted(_Message, frozen=True):
    """A notebook cell begins. No reply."""

    label: Text = ""


class IterationEnded(_Message, frozen=True):
    """What was sent is a whole iteration, which its last run did not say. No reply."""


class CellEnded(_Message, frozen=True):
    """A notebook cell ended; what was sent is a whole iteration. No reply."""

    #: it raised: what it made is kept by a traceback at most
    failed: bool = False


class Loop(_Message, frozen=True):
    """How many iterations the running loops will still do, by the notebook's lines. No reply."""

    left: Natural


class Cancel(_Message, frozen=True):
    """Stop what runs at its next op and take back all else; an iteration that has written resident
    buffers is finished first, and so are works up to number `since`. Reply: Failed with error
    "WorkCancelled" for what was not finished, if anything was; then Synced for `request`.
    """

    request: Natural
    since: Natural = 0


class Resynced(_Message, frozen=True):
    """The client has seen Resync; frames that were not acknowledged follow. No reply."""

    epoch: Natural


class Quit(_Message, frozen=True):
    """The session ends in good order. No reply."""


# -- executor -> client ----------------------------------------------------------------------


class Ready(_Message, frozen=True):
    """The executor has the session; the first message it sends, and again when `limit` changes.

    `limit`: bytes that the session's user may use, 0 for no limit but the device's capacity.
    """

    device: DeviceFacts
    limit: Natural


class Ack(_Message, frozen=True):
    """Nothing but the acknowledgement in the frame's header, and arena bytes given back.

    `arena`: total upload bytes of the arena that the executor has copied out since the start.
    """

    arena: Natural = 0


class Learnt(_Message, frozen=True):
    """What a program's ops really returned where that differs from the definition, or, for a run
    with `report`, of every output. No reply.
    """

    work: Natural
    program: Hash
    tensors: tuple[TensorReport, ...]


class DefinitionUnknown(_Message, frozen=True):
    """The executor dropped this definition: `work` was not run; define and run again. No reply.

    Everything after `work` of this session waits for it.
    """

    work: Natural
    program: Hash


class Downloaded(_Message, frozen=True):
    """The bytes of a Download, or None when they are in the arena."""

    request: Natural
    data: Annotated[bytes, msgspec.Meta(max_length=limits.INLINE_BYTES)] | None = None


class Value(_Message, frozen=True):
    """What a wanted buffer holds after the run that made it; empty: it has to be asked for."""

    buffer: Natural
    data: Annotated[bytes, msgspec.Meta(max_length=limits.WANTED_BYTES)]


class Synced(_Message, frozen=True):
    """All work before the request is done; `at_ns` on the host's monotonic clock, 0 if unknown."""

    request: Natural
    at_ns: Natural = 0


class Probed(_Message, frozen=True):
    """Geometries of the op's tensor returns in order (None: undefined or an input itself).

    With `error`: the exception's type name and its text, raised on the user's line; by the name
    TOO_LARGE nothing foretells it, and only the run can tell.
    """

    request: Natural
    outputs: tuple[Geometry | None, ...] = ()
    error: tuple[Name, Text] | None = None


class Chosen(_Message, frozen=True):
    """What the device would do by itself: answers ChooseAttention and LayOutWeights.

    With `error`: the exception's type name and its text, raised on the user's line.
    """

    request: Natural
    numbers: Annotated[tuple[Natural, ...], msgspec.Meta(max_length=1025)] = ()
    error: tuple[Name, Text] | None = None


class RngIs(_Message, frozen=True):
    """A generator's state: opaque bytes of the executor's kind of device."""

    request: Natural
    state: Annotated[bytes, msgspec.Meta(max_length=limits.INLINE_BYTES)]


class MemoryIs(_Message, frozen=True):
    """Bytes: free and total for this session's user, the session's own use and peak."""

    request: Natural
    free: Natural
    total: Natural
    used: Natural
    peak: Natural


class Failed(_Message, frozen=True):
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


class Waiting(_Message, frozen=True):
    """The session waits (for memory or its turn); for whom, in the users' eyes. No reply."""

    waits_for: tuple[Name, ...]


class Notice(_Message, frozen=True):
    """A sentence for the user, to be shown once in the cell that runs, or the next. No reply."""

    text: Text


class Resync(_Message, frozen=True):
    """A (new) executor has the descriptor: send `Resynced`, then again what was not acknowledged.

    `lost`: the session's tensors are gone; `text` says why. Where `work` is not 0, op `op` of that
    work of the session ended the executor.
    """

    epoch: Natural
    lost: bool = False
    text: Text = ""
    work: Natural = 0
    op: Natural = 0


# -- control -> executor ---------------------------------------------------------------------


class Adopt(_Message, frozen=True):
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


class SetUser(_Message, frozen=True):
    """What a user may have from here on; comes before his first session and at changes. No reply.

    `limit` and `resident_limit`: bytes of all his sessions together, and those of models among
    them; 0 for no limit. `throttled`: his work runs only where the device would idle. `refusal`:
    why new work of his is refused, empty where it is not; `refused_as`: the error's name.
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


class RefusePrograms(_Message, frozen=True):
    """All programs that are not run any more, in place of those told before. No reply."""

    programs: Annotated[tuple[RefusedProgram, ...], msgspec.Meta(max_length=limits.MAX_REFUSED)]


class Tell(_Message, frozen=True):
    """A sentence for the user of a session, passed on as `Notice`. No reply."""

    session: Natural
    text: Text


class Detach(_Message, frozen=True):
    """Drop the session: its process is gone or its seat was given up. Reply: SessionEnded."""

    session: Natural
    text: Text = ""


class RetireLane(_Message, frozen=True):
    """Give up a lane that is at a work of this session, which does not end. No reply.

    A session that lives is ended with this sentence. Nothing happens where the lane is at something
    else by now.
    """

    lane: Natural
    session: Natural
    text: Text = ""


class AskReport(_Message, frozen=True):
    """Reply: ReportIs."""

    request: Natural


class Follow(_Message, frozen=True):
    """Somebody watches, or nobody any more: ReportIs, with request 0, whenever something changed.

    At most ten times a second. No other reply.
    """

    on: bool = True


# -- executor -> control ---------------------------------------------------------------------


class ExecutorReady(_Message, frozen=True):
    """The device works: its self-test passed. `runtime` is what clients' runtimes must fit."""

    device: DeviceFacts
    pid: Natural
    runtime: Runtime | None = None


class ExecutorFailed(_Message, frozen=True):
    """The device cannot be used; one sentence says why. The executor ends."""

    text: Text


class SessionEnding(_Message, frozen=True):
    """The session has ended, and something of it runs; SessionEnded follows when that is over."""

    session: Natural


class SessionEnded(_Message, frozen=True):
    """The session's memory is free. `text` is empty for a good end."""

    session: Natural
    device_seconds: float
    text: Text = ""


class Spilled(_Message, frozen=True):
    """So many bytes of a session went to the host; so many are on the device still."""

    session: Natural
    nbytes: Natural
    left: Natural = 0


class ReportIs(_Message, frozen=True):
    """The executor's lanes and sessions at this moment; `used` in bytes of the device."""

    request: Natural
    lanes: tuple[LaneReport, ...]
    sessions: tuple[SessionReport, ...]
    used: Natural
    policy: Name
    definitions: Natural = 0
    #: no lane is open, and somebody waits for memory that retired lanes hold
    cut_off: bool = False
    #: no iteration begins
    draining: bool = False
    #: sessions with an iteration, or a copy of their memory, under way
    under_way: Ids = ()
    measures: MeasuresReport = MeasuresReport()


ControlMessage: TypeAlias = (
    Hello
    | TakeSeat
    | LeaveSeat
    | AskStatus
    | Watch
    | AskEvents
    | AskUsage
    | AskQuotas
    | SetQuota
    | Evict
    | UsePolicy
    | Drain
    | MakeSocket
    | RemoveSocket
    | AskSockets
    | NameUser
    | HubQuota
    | AskStop
)
ControlReply: TypeAlias = (
    Welcome
    | Refused
    | SeatTaken
    | StatusIs
    | StatusChanged
    | EventsAre
    | UsageIs
    | QuotasAre
    | SocketIs
    | SocketsAre
    | Done
    | Stopping
)
ClientMessage: TypeAlias = (
    Define
    | Run
    | Upload
    | Download
    | Sync
    | Free
    | Tag
    | Probe
    | ChooseAttention
    | LayOutWeights
    | Seed
    | GetRng
    | SetRng
    | Memory
    | CellStarted
    | IterationEnded
    | CellEnded
    | Loop
    | Cancel
    | Resynced
    | Quit
)
ExecutorMessage: TypeAlias = (
    Ready
    | Ack
    | Learnt
    | DefinitionUnknown
    | Downloaded
    | Synced
    | Value
    | Probed
    | Chosen
    | RngIs
    | MemoryIs
    | Failed
    | Waiting
    | Notice
    | Resync
    | Refused
)
ExecutorOrder: TypeAlias = (
    SetUser
    | Adopt
    | Tell
    | Detach
    | Evict
    | UsePolicy
    | Drain
    | RefusePrograms
    | RetireLane
    | AskReport
    | Follow
    | AskStop
)
ExecutorNotice: TypeAlias = (
    ExecutorReady | ExecutorFailed | SessionEnding | SessionEnded | Spilled | ReportIs
)
