"""What the view "Now" shows, from a report that was cut to its visitor. Pure."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from jgpu.hub.page.views import Members, report_for
from jgpu.hub.page.visitors import Visitor
from jgpu.wire.reports.report import SOMEBODY, DeviceReport, LaneReport, Report, SessionReport

__all__ = ["PARTS", "MemoryUse", "memory_of", "now_values", "why"]

#: parts of the view that are sent anew by themselves, by the names of their macros
PARTS: Final = ("overview", "sessions", "memory")

#: the most interesting first
_ORDER: Final = ("running", "waiting", "starting", "spilled", "paused", "lost", "idle")


@dataclass(slots=True)
class MemoryUse:
    """Where the memory of one session or several is; each byte is in one of the three."""

    user: str = ""
    sessions: int = 0
    #: on the device: models and optimizers, and everything else
    resident: int = 0
    ephemeral: int = 0
    #: on the host
    spilled: int = 0

    @property
    def on_device(self) -> int:
        """What of it is on the device."""
        return self.resident + self.ephemeral

    def add(self, session: SessionReport) -> None:
        """Count a session; what it has on the host is not on the device as well."""
        self.sessions += 1
        self.resident += session.resident_on_device
        self.ephemeral += session.ephemeral_on_device
        self.spilled += session.spilled_bytes


def memory_of(*sessions: SessionReport) -> MemoryUse:
    """Where the memory of these is."""
    found = MemoryUse()
    for session in sessions:
        found.add(session)
    return found


@dataclass(frozen=True, slots=True)
class _Row:
    """A session, and what may be done to it."""

    session: SessionReport
    memory: MemoryUse
    #: since when it is in its state, seconds since the epoch
    since: float
    #: a sentence's rest: for whom or for what it waits
    why: str
    may_free: bool


@dataclass(frozen=True, slots=True)
class _LaneRow:
    """A lane and who is in it."""

    lane: LaneReport
    session: SessionReport | None
    members: int


@dataclass(frozen=True, slots=True)
class _Device:
    """A device, its lanes, and where the memory of its sessions is."""

    report: DeviceReport
    lanes: list[_LaneRow]
    memory: MemoryUse


def now_values(
    visitor: Visitor, report: Report, members: Members, since: Mapping[int, float]
) -> dict[str, Any]:
    """What the templates of the view need, of what the visitor may see."""
    shown = report_for(visitor, report, members)
    by_number = {session.id: session for session in shown.sessions}
    rows = sorted(
        (_row(visitor, each, members, since) for each in shown.sessions),
        key=lambda row: (_place(row.session), row.session.queue_position or 0, row.session.id),
    )
    states = [session.state for session in shown.sessions]
    return {
        "broker": shown.broker,
        "devices": [_device(device, by_number) for device in shown.devices],
        "rows": rows,
        "counts": {state: states.count(state) for state in _ORDER if state in states},
        "memory_rows": _memory(shown.sessions),
        "capacity": sum(device.capacity_bytes for device in shown.devices),
    }


def _place(session: SessionReport) -> int:
    return _ORDER.index(session.state) if session.state in _ORDER else len(_ORDER)


def _row(
    visitor: Visitor, session: SessionReport, members: Members, since: Mapping[int, float]
) -> _Row:
    known = session.user != SOMEBODY
    return _Row(
        session=session,
        memory=memory_of(session),
        since=session.waits_since or since.get(session.id, 0.0),
        why=why(session),
        may_free=known and visitor.frees(session.user, members.get(session.user, ())),
    )


#: how a sentence goes on that begins with "waits"
_REASONS: Final = {
    "budget": "beyond its budget, until nobody else needs the device",
    "copy": "for a copy of its memory",
    "drain": "until the drain is over",
    "memory": "for memory",
    "turn": "for its turn",
}


def why(session: SessionReport) -> str:
    """What a session waits for, how many come before it, and behind whom."""
    users = _others(session)
    reason = _REASONS.get(session.waits_on, "")
    if not reason:  # of a session whose notebook the visitor may not see
        return f"for {users}" if users else ""
    ahead = f"{session.ahead} ahead" if session.ahead else ""
    return ", ".join(filter(None, (reason, ahead, f"behind {users}" if users else "")))


def _others(session: SessionReport) -> str:
    """For whom a session waits, each once; several whose names are not shown are counted."""
    users = dict.fromkeys(user for user in session.waits_for if user != SOMEBODY)
    others = session.waits_for.count(SOMEBODY)
    names = list(users)
    if others:
        names.append(SOMEBODY if others == 1 else f"{others} other users")
    return ", ".join(names)


def _device(device: DeviceReport, by_number: Mapping[int, SessionReport]) -> _Device:
    """A broker has one device, so all sessions are its."""
    lanes = [_lane(lane, by_number) for lane in device.lanes]
    return _Device(device, lanes, memory_of(*by_number.values()))


def _lane(lane: LaneReport, by_number: Mapping[int, SessionReport]) -> _LaneRow:
    running = None if lane.running is None else by_number.get(lane.running)
    return _LaneRow(lane, running, len(lane.sessions))


def _memory(sessions: Iterable[SessionReport]) -> list[MemoryUse]:
    """Users with a session, those with most on the device first."""
    rows: dict[str, MemoryUse] = {}
    for session in sessions:
        rows.setdefault(session.user, MemoryUse(session.user)).add(session)
    return sorted(rows.values(), key=lambda row: (-row.on_device - row.spilled, row.user))
