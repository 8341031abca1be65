"""What the core shows of itself, for status pages and metrics: frozen copies of plain values."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["LaneStatus", "SessionStatus", "Snapshot", "UserStatus"]


@dataclass(frozen=True, slots=True)
class LaneStatus:
    """One lane; sizes in bytes."""

    id: int
    state: str
    capacity: int
    #: bytes of iterations under way whose session has not the turn
    suspended: int
    #: the sessions that belong to it, ascending
    sessions: tuple[int, ...]
    #: the session that the device is at, None when the lane is idle
    running: int | None


@dataclass(frozen=True, slots=True)
class SessionStatus:
    """One session; sizes in bytes, times in seconds."""

    id: int
    user: str
    #: idle, waiting or running
    state: str
    #: users for whom it waits; empty unless waiting
    waits_for: tuple[str, ...]
    lane: int | None
    resident: int
    kept: int
    transient: int
    device_seconds: float
    iterations: int
    #: mean device time of an iteration
    iteration_s: float
    #: 1 for whoever comes next of those who wait in the same lane (or for a lane); 0 if not waiting
    queue_position: int


@dataclass(frozen=True, slots=True)
class UserStatus:
    """One user's account."""

    name: str
    weight: float
    device_seconds: float


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Everything at one moment."""

    policy: str
    #: bytes that all share
    capacity: int
    #: bytes that the safety condition counts
    committed: int
    #: time during which at least one lane was busy
    busy_seconds: float
    lanes: tuple[LaneStatus, ...]
    sessions: tuple[SessionStatus, ...]
    users: tuple[UserStatus, ...]
