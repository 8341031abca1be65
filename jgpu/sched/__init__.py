"""The scheduler: a pure core that decides about the lanes, turns and memory of one device.

`Core.handle(event, now)` takes what happened and returns what to do. Nothing here knows torch,
sockets, clocks or chance; the rule is that it stays so.
"""

from jgpu.sched.actions import (
    Action,
    CloseLane,
    MoveLane,
    OpenLane,
    ResizeLane,
    Start,
    Wait,
)
from jgpu.sched.core import Core
from jgpu.sched.events import (
    CellEnded,
    CellStarted,
    Event,
    LanesConfigured,
    MemoryMeasured,
    PolicyChanged,
    Segment,
    SegmentsFinished,
    SessionClosed,
    SessionEvent,
    SessionIdle,
    SessionOpened,
    WorkArrived,
    WorkCancelled,
)
from jgpu.sched.journal import Entry
from jgpu.sched.limits import Limits
from jgpu.sched.policies import Policy, load_policy
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
    "MemoryMeasured",
    "MoveLane",
    "OpenLane",
    "Policy",
    "PolicyChanged",
    "ResizeLane",
    "Segment",
    "SegmentsFinished",
    "SessionClosed",
    "SessionEvent",
    "SessionIdle",
    "SessionOpened",
    "SessionStatus",
    "Snapshot",
    "Start",
    "UserStatus",
    "Wait",
    "WorkArrived",
    "WorkCancelled",
    "load_policy",
]
