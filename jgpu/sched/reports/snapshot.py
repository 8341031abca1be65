"""What the core shows of itself, for status pages and metrics: frozen copies of plain values.

The rule: taking a snapshot changes nothing, and nothing in it changes afterwards.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from jgpu.sched.lanes.retirement import is_cut_off
from jgpu.sched.priorities import name_of
from jgpu.sched.states import Residence, SessionState
from jgpu.sched.waits import places

if TYPE_CHECKING:
    from collections.abc import Collection

    from jgpu.sched.finishing import Finishing
    from jgpu.sched.lanes.lane import Lane
    from jgpu.sched.lanes.table import LaneTable
    from jgpu.sched.ledger import FairShare
    from jgpu.sched.reports.measures import Counts
    from jgpu.sched.sessions.session import ScheduledSession
    from jgpu.sched.turns import Turns
    from jgpu.sched.waits import QueuePlace

__all__ = ["LaneStatus", "SessionStatus", "Snapshot", "UserStatus", "take_snapshot"]


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
    #: where its memory is: here, yielding, spilling, away or restoring
    residence: str
    #: its class: interactive, normal or batch
    priority: str
    #: users for whom it waits; empty unless waiting
    waits_for: tuple[str, ...]
    #: drain, copy, budget, turn or memory; empty unless waiting
    waits_on: str
    lane: int | None
    resident: int
    kept: int
    transient: int
    #: bytes on the host that come back before anything of it runs
    spilled: int
    device_seconds: float
    iterations: int
    #: mean device time of an iteration
    iteration_s: float
    #: median and 95th percentile of the device times of the last ones; 0 before the first
    iteration_median_s: float
    iteration_p95_s: float
    #: since when it waits, on the clock of `Core.handle`; None unless waiting
    waits_since: float | None
    #: 1 for whoever comes next of those who wait in the same lane (or for a lane); 0 if not waiting
    queue_position: int
    #: sessions that have the device before its turn comes; None unless it waits for its turn
    ahead: int | None


@dataclass(frozen=True, slots=True)
class UserStatus:
    """One user's account."""

    name: str
    weight: float
    #: runs only where the device would idle
    throttled: bool
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
    #: no lane is open, and somebody waits for memory that retired lanes hold
    cut_off: bool
    #: nobody begins an iteration
    draining: bool
    #: sessions with an iteration, or a copy of their memory, under way; ascending
    under_way: tuple[int, ...]
    #: how long sessions waited each time before something of them ran
    waits: Counts
    #: device time of all iterations
    iterations: Counts
    lanes: tuple[LaneStatus, ...]
    sessions: tuple[SessionStatus, ...]
    users: tuple[UserStatus, ...]


def take_snapshot(
    table: LaneTable, ledger: FairShare, turns: Turns, finishing: Finishing
) -> Snapshot:
    """Copy what is worth showing."""
    policy = turns.policy
    waiting = places(table, policy)
    return Snapshot(
        policy=policy.name,
        capacity=table.capacity,
        committed=table.committed,
        busy_seconds=ledger.busy_s,
        cut_off=is_cut_off(table),
        draining=table.draining,
        under_way=tuple(sorted(n for n, each in table.sessions.items() if _is_under_way(each))),
        waits=turns.waits.now,
        iterations=finishing.iterations.now,
        lanes=tuple(_lane_status(lane) for _, lane in sorted(table.lanes.items())),
        sessions=tuple(
            _session_status(session, waiting.get(session.id))
            for _, session in sorted(table.sessions.items())
            if session.state is not SessionState.CLOSED
        ),
        users=tuple(
            UserStatus(name, user.weight, user.throttled, user.device_seconds)
            for name, user in sorted(ledger.users.items())
        ),
    )


def _is_under_way(session: ScheduledSession) -> bool:
    return session.pinned or session.residence in (Residence.SPILLING, Residence.RESTORING)


def _lane_status(lane: Lane) -> LaneStatus:
    return LaneStatus(
        id=lane.id,
        state=str(lane.state),
        capacity=lane.capacity,
        suspended=lane.suspended,
        sessions=tuple(sorted(lane.members)),
        running=None if lane.running is None else lane.running.id,
    )


def _session_status(session: ScheduledSession, place: QueuePlace | None) -> SessionStatus:
    return SessionStatus(
        id=session.id,
        user=session.user.name,
        state=str(session.state),
        residence=str(session.residence),
        priority=name_of(session.priority),
        waits_since=session.waiting.began if session.state is SessionState.WAITING else None,
        waits_for=place.why.users if place else (),
        waits_on=place.why.on if place else "",
        lane=None if session.lane is None else session.lane.id,
        resident=session.memory.resident,
        kept=session.memory.kept,
        transient=session.room.transient,
        spilled=session.memory.spilled,
        device_seconds=session.progress.device_seconds,
        iterations=session.progress.iterations,
        iteration_s=session.progress.iteration_s,
        iteration_median_s=_percentile(session.progress.iteration_times, 50),
        iteration_p95_s=_percentile(session.progress.iteration_times, 95),
        queue_position=place.position if place else 0,
        ahead=place.ahead if place else None,
    )


def _percentile(times: Collection[float], percent: int) -> float:
    """Return the least of the times that so many percent of them do not exceed."""
    return sorted(times)[-(-len(times) * percent // 100) - 1] if times else 0.0
