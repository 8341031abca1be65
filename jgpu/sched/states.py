"""The states of sessions, works and lanes, and which may follow which.

The rule: a state changes only through the noun's `become`, which asks the table; a pair that is not
in the table is a bug of the core or of the executor, and raises with the story.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Final, TypeVar

from jgpu.errors import JgpuError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

__all__ = [
    "LANE_MOVES",
    "RESIDENCE_MOVES",
    "SESSION_MOVES",
    "WORK_MOVES",
    "IllegalEvent",
    "IllegalTransition",
    "LaneState",
    "Residence",
    "SessionState",
    "WorkState",
    "check_move",
]

State = TypeVar("State", bound=StrEnum)


class IllegalEvent(JgpuError, ValueError):
    """An event that cannot have happened; the executor is at fault."""

    fault = "the executor"
    reason = "illegal_event"


class IllegalTransition(JgpuError, RuntimeError):
    """A state followed another that it must not follow; the message ends with the story."""

    reason = "illegal_transition"

    def __init__(self, noun: str, old: StrEnum, new: StrEnum, story: Iterable[object]) -> None:
        told = "".join(f"\n  {entry}" for entry in story)
        super().__init__(f"{noun} cannot go from {old} to {new}; its story:{told or ' (none)'}")


class SessionState(StrEnum):
    """What a session is doing."""

    #: nothing queued, nothing in flight
    IDLE = "idle"
    #: work is queued, nothing in flight
    WAITING = "waiting"
    #: segments are in flight
    RUNNING = "running"
    #: the client is gone; what was started runs out
    CLOSED = "closed"


class WorkState(StrEnum):
    """How far a work has come."""

    #: no segment has been started; may be cancelled
    QUEUED = "queued"
    #: at least one segment has been started; runs to its end, unless a retired lane gives it back
    STARTED = "started"
    FINISHED = "finished"
    CANCELLED = "cancelled"


class LaneState(StrEnum):
    """Whether a lane takes sessions."""

    OPEN = "open"
    #: takes nobody any more, and closes when the last iteration in it has ended
    CLOSING = "closing"
    #: given up, for what it is at does not end; closes when that ends after all
    RETIRED = "retired"
    CLOSED = "closed"


class Residence(StrEnum):
    """Where the memory is that a session needs to run."""

    #: on the device
    HERE = "here"
    #: on the device, and to go at the session's next boundary
    YIELDING = "yielding"
    #: being copied to the host
    SPILLING = "spilling"
    #: on the host
    AWAY = "away"
    #: being copied back; counted as if it were here
    RESTORING = "restoring"


SESSION_MOVES: Final[Mapping[SessionState, frozenset[SessionState]]] = {
    SessionState.IDLE: frozenset({SessionState.WAITING, SessionState.CLOSED}),
    SessionState.WAITING: frozenset({SessionState.IDLE, SessionState.RUNNING, SessionState.CLOSED}),
    SessionState.RUNNING: frozenset({SessionState.IDLE, SessionState.WAITING, SessionState.CLOSED}),
    SessionState.CLOSED: frozenset(),
}

WORK_MOVES: Final[Mapping[WorkState, frozenset[WorkState]]] = {
    WorkState.QUEUED: frozenset({WorkState.STARTED, WorkState.CANCELLED}),
    WorkState.STARTED: frozenset({WorkState.FINISHED, WorkState.QUEUED}),
    WorkState.FINISHED: frozenset(),
    WorkState.CANCELLED: frozenset(),
}

LANE_MOVES: Final[Mapping[LaneState, frozenset[LaneState]]] = {
    LaneState.OPEN: frozenset({LaneState.CLOSING, LaneState.RETIRED, LaneState.CLOSED}),
    LaneState.CLOSING: frozenset({LaneState.RETIRED, LaneState.CLOSED}),
    LaneState.RETIRED: frozenset({LaneState.CLOSED}),
    LaneState.CLOSED: frozenset(),
}


RESIDENCE_MOVES: Final[Mapping[Residence, frozenset[Residence]]] = {
    Residence.HERE: frozenset({Residence.YIELDING, Residence.SPILLING, Residence.AWAY}),
    Residence.YIELDING: frozenset({Residence.HERE, Residence.SPILLING, Residence.AWAY}),
    Residence.SPILLING: frozenset({Residence.HERE, Residence.AWAY}),
    Residence.AWAY: frozenset({Residence.HERE, Residence.RESTORING}),
    Residence.RESTORING: frozenset({Residence.HERE, Residence.AWAY}),
}


def check_move(
    moves: Mapping[State, frozenset[State]],
    noun: str,
    old: State,
    new: State,
    story: Iterable[object] = (),
) -> State:
    """Return `new`, or raise `IllegalTransition` where the table does not lead there."""
    if new not in moves[old]:
        raise IllegalTransition(noun, old, new, story)
    return new
