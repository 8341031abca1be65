"""What the executor is asked to do: the closed set of actions.

Names are imperatives. The rule: the executor carries out a list of actions in its order and asks
nothing back; what comes of it is told by later events.
"""

from __future__ import annotations

from enum import StrEnum

from jgpu.sched.events import Caused

__all__ = [
    "Action",
    "CloseLane",
    "MemoryPart",
    "MoveLane",
    "OpenLane",
    "ResizeLane",
    "Restore",
    "Spill",
    "Start",
    "Wait",
]


class MemoryPart(StrEnum):
    """Which of a session's buffers are meant."""

    #: those that nobody is expected to use again, which do not come back by themselves
    STALE = "stale"
    #: all ephemeral ones
    KEPT = "kept"
    #: all, those of the model included
    ALL = "all"


class Action(Caused, frozen=True):
    """Base of all actions."""


class Start(Action, frozen=True):
    """Launch `count` segments of a work, from segment `first` on, behind what the lane has."""

    work: int
    session: int
    first: int
    count: int
    lane: int
    #: the lease under which the segments run, to be named when they have finished
    epoch: int


class OpenLane(Action, frozen=True):
    """Make a lane with room for `capacity` bytes of ephemeral memory."""

    lane: int
    capacity: int


class CloseLane(Action, frozen=True):
    """End a lane; nothing runs in it and nobody belongs to it. Its number may be used again."""

    lane: int


class ResizeLane(Action, frozen=True):
    """Give a lane room for `capacity` bytes of ephemeral memory instead of what it had."""

    lane: int
    capacity: int


class MoveLane(Action, frozen=True):
    """Let a session, which is at a boundary with nothing in flight, run in this lane next."""

    session: int
    lane: int


class Wait(Action, frozen=True):
    """Tell a session that it waits, for memory or for its turn, and for whom (user names)."""

    session: int
    waits_for: tuple[str, ...]


class Spill(Action, frozen=True):
    """Copy buffers of a session, nothing of which is in flight, to the host and free them.

    Answered by `SessionSpilled`; until then nothing of the session is started.
    """

    session: int
    part: MemoryPart


class Restore(Action, frozen=True):
    """Copy back to the device what the session needs; room for it is kept.

    Answered by `SessionRestored`; until then nothing of the session is started.
    """

    session: int
