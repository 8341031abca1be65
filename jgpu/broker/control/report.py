"""What `jgpu status --json` prints, for one asker. Pure: built from what others measured.

Fields are added, never renamed. Only an administrator sees other users' names, notebooks and
processes; for everybody else those sessions are there, because they explain why one waits.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from jgpu.broker.control.registry import Session, SessionState, UserUsage
from jgpu.broker.flightpage import Entry
from jgpu.wire.messages import DeviceFacts, LaneReport, ReportIs, SessionReport

__all__ = ["DeviceView", "Viewer", "build_report"]

#: Stands for a user whose name the asker may not see.
SOMEBODY: Final = "another user"


@dataclass(frozen=True, slots=True)
class Viewer:
    """Who asks."""

    user: str
    administrator: bool

    def name(self, user: str) -> str:
        """`user` as this viewer may see it."""
        return user if self.administrator or user == self.user else SOMEBODY


@dataclass(frozen=True, slots=True)
class DeviceView:
    """A device and the last report of its executor."""

    kind: str
    state: str
    note: str
    facts: DeviceFacts | None
    report: ReportIs | None
    policy: str
    capacity: int
    restarts: int
    pid: int | None
    #: by lane, what each is at
    working: Mapping[int, Entry] = field(default_factory=dict)
    #: what is shown of the last executor's end, by viewer
    last_end: Callable[[Viewer], Mapping[str, Any] | None] = lambda viewer: None


def build_report(
    broker: Mapping[str, Any],
    devices: Iterable[DeviceView],
    sessions: Iterable[Session],
    usage: Mapping[str, UserUsage],
    viewer: Viewer,
    now: float,
    standing: Callable[[str], Mapping[str, Any]] = lambda user: {},
) -> dict[str, Any]:
    """The whole report as plain data; `standing` adds to a user's row what he may have."""
    devices, sessions = list(devices), list(sessions)
    measured = {r.session: r for d in devices if d.report for r in d.report.sessions}
    lost = any(d.state in ("restarting", "failed") for d in devices)
    users = _users(sessions, measured, usage, viewer)
    visible = (s.number for s in sessions if viewer.administrator or s.user == viewer.user)
    own = frozenset(visible)
    rows = [_session(s, measured.get(s.number), viewer, now, lost=lost) for s in sessions]
    return {
        "broker": dict(broker),
        "devices": [_device(device, viewer, own, now) for device in devices],
        "sessions": rows,
        "users": [row | dict(standing(row["name"])) for row in users],
    }


def _device(device: DeviceView, viewer: Viewer, own: frozenset[int], now: float) -> dict[str, Any]:
    facts, report = device.facts, device.report
    return {
        "name": facts.name if facts else device.kind,
        "kind": facts.kind if facts else device.kind,
        "capacity_bytes": facts.capacity if facts else device.capacity,
        "policy": report.policy if report else device.policy,
        "lanes": [_lane(lane, device, own, now) for lane in report.lanes] if report else [],
        "state": device.state,
        "note": device.note,
        "used_bytes": report.used if report else 0,
        "threads": facts.threads if facts else 0,
        "definitions": report.definitions if report else 0,
        "restarts": device.restarts,
        "pid": device.pid if viewer.administrator else None,
        "last_end": device.last_end(viewer),
    }


def _lane(lane: LaneReport, device: DeviceView, own: frozenset[int], now: float) -> dict[str, Any]:
    entry = device.working.get(lane.id)
    return {
        "id": lane.id,
        "capacity_bytes": lane.capacity,
        "sessions": list(lane.sessions),
        "running": lane.running,
        "state": lane.state,
        "running_seconds": max(0.0, now - entry.since_ns / 1e9) if entry else 0.0,
        "op": entry.name if entry and entry.session in own else "",
    }


def _session(
    session: Session, measured: SessionReport | None, viewer: Viewer, now: float, *, lost: bool
) -> dict[str, Any]:
    visible = viewer.administrator or session.user == viewer.user
    state = measured.state if measured else "lost" if lost and session.adoptions else "starting"
    if session.state is SessionState.WAITING and measured:
        state = "lost"
    return {
        "id": session.number,
        "user": viewer.name(session.user),
        "kernel_id": session.kernel_id if visible else "",
        "state": state,
        "lane": measured.lane if measured else None,
        "resident_bytes": measured.resident if measured else 0,
        "ephemeral_bytes": measured.ephemeral if measured else 0,
        "spilled_bytes": measured.spilled if measured else 0,
        "device_seconds": measured.device_seconds if measured else 0.0,
        "iterations": measured.iterations if measured else 0,
        "iteration_seconds": {
            "median": measured.iteration_median if measured else 0.0,
            "p95": measured.iteration_p95 if measured else 0.0,
        },
        "queue_position": measured.queue_position if measured else None,
        "waits_for": [viewer.name(user) for user in measured.waits_for] if measured else [],
        "label": session.label if visible else "",
        "cell": measured.cell if measured and visible else "",
        "pid": session.peer.pid if visible else None,
        "age_seconds": max(0.0, now - session.since),
    }


def _users(
    sessions: list[Session],
    measured: Mapping[int, SessionReport],
    usage: Mapping[str, UserUsage],
    viewer: Viewer,
) -> list[dict[str, Any]]:
    """Everybody who has or had a session; for most askers that is themselves."""
    rows: dict[str, dict[str, Any]] = {}
    for user, settled in usage.items():
        row = rows.setdefault(user, _user(user))
        row["device_seconds"] += settled.device_seconds
        row["ended_sessions"] += settled.sessions
    for session in sessions:
        row = rows.setdefault(session.user, _user(session.user))
        row["sessions"] += 1
        if now := measured.get(session.number):
            row["device_seconds"] += now.device_seconds
            row["resident_bytes"] += now.resident
            row["ephemeral_bytes"] += now.ephemeral
    visible = (row for user, row in rows.items() if viewer.administrator or user == viewer.user)
    return sorted(visible, key=lambda row: row["name"])


def _user(user: str) -> dict[str, Any]:
    return {
        "name": user,
        "sessions": 0,
        "ended_sessions": 0,
        "device_seconds": 0.0,
        "resident_bytes": 0,
        "ephemeral_bytes": 0,
    }
