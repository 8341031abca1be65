"""What the executor is asked to do: the closed set of actions.

Names are imperatives. The rule: the executor carries out a list of actions in its order and asks
nothing back; what comes of it is told by later events.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Action:
    """Base of all actions."""

    #: number of the event, counted by the core from 1, that this action answers
    cause: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class Start(Action):
    """Launch `count` segments of a work, from segment `first` on, behind what the lane has."""

    work: int
    session: int
    first: int
    count: int
    lane: int
    #: the lease under which the segments run, to be named when they have finished
    epoch: int


@dataclass(frozen=True, slots=True)
class OpenLane(Action):
    """Make a lane with room for `capacity` bytes of ephemeral memory."""

    lane: int
    capacity: int


@dataclass(frozen=True, slots=True)
class CloseLane(Action):
    """End a lane; nothing runs in it and nobody belongs to it. Its number may be used again."""

    lane: int


@dataclass(frozen=True, slots=True)
class ResizeLane(Action):
    """Give a lane room for `capacity` bytes of ephemeral memory instead of what it had."""

    lane: int
    capacity: int


@dataclass(frozen=True, slots=True)
class MoveLane(Action):
    """Let a session, which is at a boundary with nothing in flight, run in this lane next."""

    session: int
    lane: int


@dataclass(frozen=True, slots=True)
class Wait(Action):
    """Tell a session that it waits, for memory or for its turn, and for whom (user names)."""

    session: int
    waits_for: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Spill(Action):
    """Copy buffers of a session, nothing of which is in flight, to the host and free them.

    Answered by `SessionSpilled`; until then nothing of the session is started.
    """

    session: int
    part: MemoryPart


@dataclass(frozen=True, slots=True)
class Restore(Action):
    """Copy back to the device what the session needs; room for it is kept.

    Answered by `SessionRestored`; until then nothing of the session is started.
    """

    session: int
