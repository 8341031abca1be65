"""The broker's report for one asker. Pure: built from what others measured.

Only an administrator sees other users' names, notebooks and processes; for everybody else those
sessions are there, because they explain why one waits.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from msgspec.structs import asdict, replace

from jgpu.broker.control.registry import SessionPhase, SessionRecord, UserUsage
from jgpu.broker.flightpage import FlightEntry
from jgpu.wire.messages import DeviceFacts, ReportIs
from jgpu.wire.reports.report import (
    SOMEBODY,
    BrokerReport,
    DeviceReport,
    EndReport,
    LaneReport,
    MeasuresReport,
    MemoryReport,
    Report,
    SessionReport,
    StandingReport,
    UserReport,
)

__all__ = ["DeviceView", "Viewer", "build_report"]


@dataclass(frozen=True, slots=True)
class Viewer:
    """Who asks."""

    user: str
    administrator: bool

    def sees(self, user: str) -> bool:
        """Whether this viewer may see what `user` does."""
        return self.administrator or user == self.user

    def name(self, user: str) -> str:
        """`user` as this viewer may see it."""
        return user if self.sees(user) else SOMEBODY


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
    working: Mapping[int, FlightEntry] = field(default_factory=dict)
    #: what is shown of the last executor's end, by viewer
    last_end: Callable[[Viewer], EndReport | None] = lambda viewer: None


def build_report(
    broker: BrokerReport,
    devices: Iterable[DeviceView],
    sessions: Iterable[SessionRecord],
    usage: Mapping[str, UserUsage],
    viewer: Viewer,
    now: float,
    standing: Callable[[str], StandingReport] = lambda user: StandingReport(name=user),
    epoch: float = 0.0,
) -> Report:
    """Everything that the viewer may see; `standing` says what a user may have.

    `now` is on the monotonic clock, which began `epoch` seconds after the epoch.
    """
    devices, sessions = list(devices), list(sessions)
    measured = {r.id: r for d in devices if d.report for r in d.report.sessions}
    lost = any(d.state in ("restarting", "failed") for d in devices)
    own = frozenset(s.number for s in sessions if viewer.sees(s.user))
    return Report(
        broker=replace(broker, asker=viewer.user),
        devices=tuple(_device(device, viewer, own, now, epoch) for device in devices),
        sessions=tuple(
            _session(
                each,
                measured.get(each.number),
                viewer,
                now,
                epoch,
                lost=lost,
                private=broker.private,
            )
            for each in sessions
        ),
        users=_users(sessions, measured, usage, viewer, standing, private=broker.private),
    )


def _device(
    device: DeviceView, viewer: Viewer, own: frozenset[int], now: float, epoch: float
) -> DeviceReport:
    facts, report = device.facts, device.report
    return DeviceReport(
        name=facts.name if facts else device.kind,
        kind=facts.kind if facts else device.kind,
        capacity_bytes=facts.capacity if facts else device.capacity,
        policy=report.policy if report else device.policy,
        lanes=tuple(_lane(each, device, own, now, epoch) for each in report.lanes)
        if report
        else (),
        state=device.state,
        note=device.note,
        used_bytes=report.used if report else 0,
        threads=facts.threads if facts else 0,
        definitions=report.definitions if report else 0,
        restarts=device.restarts,
        pid=device.pid if viewer.administrator else None,
        last_end=device.last_end(viewer),
        memory=_memory(report.sessions) if report else MemoryReport(),
        measures=report.measures if report and viewer.administrator else MeasuresReport(),
    )


def _memory(sessions: Iterable[SessionReport]) -> MemoryReport:
    rows = list(sessions)
    return MemoryReport(
        resident_bytes=sum(row.resident_bytes for row in rows),
        ephemeral_bytes=sum(row.ephemeral_bytes for row in rows),
        spilled_bytes=sum(row.spilled_bytes for row in rows),
    )


def _lane(
    lane: LaneReport, device: DeviceView, own: frozenset[int], now: float, epoch: float
) -> LaneReport:
    entry = device.working.get(lane.id)
    return replace(
        lane,
        running_seconds=max(0.0, now - entry.since_ns / 1e9) if entry else 0.0,
        running_since=epoch + entry.since_ns / 1e9 if entry else 0.0,
        op=entry.name if entry and entry.session in own else "",
    )


def _session(
    session: SessionRecord,
    measured: SessionReport | None,
    viewer: Viewer,
    now: float,
    epoch: float,
    *,
    lost: bool,
    private: bool,
) -> SessionReport:
    """What the executor measured, with what only this process knows of the session."""
    visible = viewer.sees(session.user)
    own = private or session.user == viewer.user
    row = measured or SessionReport(
        id=session.number, state="lost" if lost and session.adoptions else "starting"
    )
    return replace(
        row,
        user=viewer.name(session.user),
        kernel_id=session.kernel_id if visible else "",
        state="lost" if measured and session.state is SessionPhase.WAITING else row.state,
        waits_for=tuple(viewer.name(user) for user in row.waits_for),
        waits_on=row.waits_on if visible else "",
        ahead=row.ahead if visible else None,
        label=session.label if visible else "",
        cell=row.cell if visible else "",
        cells=row.cells if own else {},
        pid=session.peer.pid if visible else None,
        age_seconds=max(0.0, now - session.since),
        since=epoch + session.since,
    )


def _users(
    sessions: Iterable[SessionRecord],
    measured: Mapping[int, SessionReport],
    usage: Mapping[str, UserUsage],
    viewer: Viewer,
    standing: Callable[[str], StandingReport],
    *,
    private: bool,
) -> tuple[UserReport, ...]:
    """Everybody who has or had a session, and whoever asks for themselves."""
    here = {name: _Sums() for name in usage}
    if private or not viewer.administrator:
        here.setdefault(viewer.user, _Sums())
    for name, settled in usage.items():
        here[name].device_seconds = settled.device_seconds
        here[name].ended = settled.sessions
    for session in sessions:
        here.setdefault(session.user, _Sums()).add(measured.get(session.number))
    return tuple(
        UserReport(
            **asdict(standing(name)) | {"sessions": sums.sessions},
            ended_sessions=sums.ended,
            device_seconds=sums.device_seconds,
            resident_bytes=sums.resident,
            ephemeral_bytes=sums.ephemeral,
        )
        for name, sums in sorted(here.items())
        if viewer.sees(name)
    )


@dataclass(slots=True)
class _Sums:
    """What the sessions of one user come to."""

    sessions: int = 0
    ended: int = 0
    device_seconds: float = 0.0
    resident: int = 0
    ephemeral: int = 0

    def add(self, row: SessionReport | None) -> None:
        """Count an open session, measured or not."""
        self.sessions += 1
        if row is not None:
            self.device_seconds += row.device_seconds
            self.resident += row.resident_bytes
            self.ephemeral += row.ephemeral_bytes
