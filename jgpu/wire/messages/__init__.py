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

from typing import TypeAlias

from jgpu.wire.messages.from_control import (
    Done,
    EventsAre,
    QuotasAre,
    Refused,
    SeatTaken,
    SocketIs,
    SocketsAre,
    StatusChanged,
    StatusIs,
    Stopping,
    UsageIs,
    Welcome,
)
from jgpu.wire.messages.from_executor import (
    Ack,
    Chosen,
    DefinitionUnknown,
    Downloaded,
    Failed,
    Learnt,
    MemoryIs,
    Notice,
    Probed,
    Ready,
    Resync,
    RngIs,
    Synced,
    Value,
    Waiting,
    WorksDone,
)
from jgpu.wire.messages.notices import (
    ExecutorFailed,
    ExecutorReady,
    ReportIs,
    SessionEnded,
    SessionEnding,
    Spilled,
    WentThrough,
)
from jgpu.wire.messages.orders import (
    Adopt,
    AskReport,
    Detach,
    Follow,
    RefusedProgram,
    RefusePrograms,
    RetireLane,
    SetUser,
    Suspect,
    Tell,
    TryAlone,
)
from jgpu.wire.messages.parts import EPHEMERAL as EPHEMERAL
from jgpu.wire.messages.parts import RESIDENT as RESIDENT
from jgpu.wire.messages.parts import TOO_LARGE as TOO_LARGE
from jgpu.wire.messages.parts import DeviceFacts, Runtime, TensorReport
from jgpu.wire.messages.parts import Number as Number
from jgpu.wire.messages.to_control import (
    AskEvents,
    AskQuotas,
    AskSockets,
    AskStatus,
    AskStop,
    AskUsage,
    Drain,
    Evict,
    Hello,
    HubQuota,
    LeaveSeat,
    MakeSocket,
    NameUser,
    RemoveSocket,
    SetQuota,
    TakeSeat,
    UsePolicy,
    Watch,
)
from jgpu.wire.messages.to_executor import (
    Cancel,
    CellEnded,
    CellStarted,
    ChooseAttention,
    ChooseNorm,
    Define,
    Download,
    Free,
    GetRng,
    IterationEnded,
    LayOutWeights,
    Loop,
    Memory,
    Probe,
    Quit,
    ReportProgress,
    Resynced,
    Run,
    Seed,
    SetRng,
    Sync,
    Tag,
    Upload,
)

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
    "ChooseNorm",
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
    "ReportProgress",
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
    "Suspect",
    "Sync",
    "Synced",
    "Tag",
    "TakeSeat",
    "Tell",
    "TensorReport",
    "TryAlone",
    "Upload",
    "UsageIs",
    "UsePolicy",
    "Value",
    "Waiting",
    "Watch",
    "Welcome",
    "WentThrough",
    "WorksDone",
]

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
    | ChooseNorm
    | LayOutWeights
    | Seed
    | GetRng
    | SetRng
    | Memory
    | CellStarted
    | IterationEnded
    | CellEnded
    | Loop
    | ReportProgress
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
    | WorksDone
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
    | TryAlone
    | RetireLane
    | AskReport
    | Follow
    | AskStop
)
ExecutorNotice: TypeAlias = (
    ExecutorReady | ExecutorFailed | SessionEnding | SessionEnded | Spilled | WentThrough | ReportIs
)
