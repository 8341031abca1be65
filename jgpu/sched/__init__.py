"""The scheduler: a pure core that decides about the lanes, turns and memory of one device.

`Core.handle(event, now)` takes what happened and returns what to do. Nothing here knows torch,
sockets, clocks or chance; the rule is that it stays so.
"""

from jgpu.sched.actions import (
    Action,
    CloseLane,
    MoveLane,
    OpenLane,
    Part,
    ResizeLane,
    Restore,
    Spill,
    Start,
    Wait,
)
from jgpu.sched.core import Core
from jgpu.sched.events import (
    CellEnded,
    CellStarted,
    Event,
    LanesConfigured,
    LoopTold,
    MemoryMeasured,
    MemoryShort,
    MemoryWanted,
    PolicyChanged,
    Segment,
    SegmentsFinished,
    SessionClosed,
    SessionEvent,
    SessionIdle,
    SessionOpened,
    SessionRestored,
    SessionSpilled,
    SpillAsked,
    TimeCharged,
    TimePassed,
    UserConfigured,
    WorkArrived,
    WorkCancelled,
)
from jgpu.sched.journal import Entry
from jgpu.sched.limits import Limits
from jgpu.sched.policies import Policy, load_policy
from jgpu.sched.priorities import Priority
from jgpu.sched.snapshot import LaneStatus, SessionStatus, Snapshot, UserStatus
from jgpu.sched.states import IllegalEvent, IllegalTransition

__all__ = [
    "Action",
    "CellEnded",
    "CellStarted",
    "CloseLane",
    "Core",
    "Entry",
    "Event",
    "IllegalEvent",
    "IllegalTransition",
    "LaneStatus",
    "LanesConfigured",
    "Limits",
    "LoopTold",
    "MemoryMeasured",
    "MemoryShort",
    "MemoryWanted",
    "MoveLane",
    "OpenLane",
    "Part",
    "Policy",
    "PolicyChanged",
    "Priority",
    "ResizeLane",
    "Restore",
    "Segment",
    "SegmentsFinished",
    "SessionClosed",
    "SessionEvent",
    "SessionIdle",
    "SessionOpened",
    "SessionRestored",
    "SessionSpilled",
    "SessionStatus",
    "Snapshot",
    "Spill",
    "SpillAsked",
    "Start",
    "TimeCharged",
    "TimePassed",
    "UserConfigured",
    "UserStatus",
    "Wait",
    "WorkArrived",
    "WorkCancelled",
    "load_policy",
]
