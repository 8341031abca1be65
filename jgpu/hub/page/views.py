"""What one visitor may see of the broker's reports. Pure.

Everything is built anew from the fields that are named here: a field that a newer broker tells, and
that is not thought of here, is shown to nobody who does not see everybody.

Invariant: a visitor without a right to it finds no name, notebook, cell, kernel or process of
another in what these functions return.
"""

from collections.abc import Mapping

from jgpu.hub.page.visitors import Visitor
from jgpu.wire.reports.report import (
    SOMEBODY,
    BrokerReport,
    DeviceReport,
    EndReport,
    LaneReport,
    QuotasReport,
    Report,
    ScopeReport,
    SessionReport,
)

__all__ = ["Members", "members_of", "quotas_for", "report_for"]

#: user -> groups
Members = Mapping[str, tuple[str, ...]]


def members_of(*reports: Report | QuotasReport | None) -> dict[str, tuple[str, ...]]:
    """Who is in which groups, as the broker says."""
    return {row.name: row.groups for report in reports if report for row in report.users}


def report_for(visitor: Visitor, report: Report, members: Members) -> Report:
    """The broker's report, as far as the visitor may see it."""
    if visitor.reads:
        return report
    seen = {user for user in _users(report) if visitor.sees(user, members.get(user, ()))}
    own = {session.id for session in report.sessions if session.user in seen}
    return Report(
        broker=_broker(report.broker),
        devices=tuple(_device(device, own) for device in report.devices),
        sessions=tuple(_session(session, seen) for session in report.sessions),
        users=tuple(user for user in report.users if user.name in seen),
    )


def quotas_for(visitor: Visitor, report: QuotasReport, members: Members) -> QuotasReport:
    """What is said of scopes and users, as far as the visitor may see it."""
    if visitor.reads:
        return report
    users = tuple(u for u in report.users if visitor.sees(u.name, members.get(u.name, u.groups)))
    names = {user.name for user in users}
    return QuotasReport(
        scopes=tuple(each for each in report.scopes if _sees_scope(visitor, each, names)),
        users=users,
    )


def _users(report: Report) -> set[str]:
    return {s.user for s in report.sessions} | {u.name for u in report.users}


def _sees_scope(visitor: Visitor, scope: ScopeReport, names: set[str]) -> bool:
    kind, _, name = scope.scope.partition(":")
    if kind == "user":
        return name in names
    return name in visitor.tutors if kind == "group" else visitor.sees_others


def _broker(broker: BrokerReport) -> BrokerReport:
    return BrokerReport(
        version=broker.version,
        started=broker.started,
        seats=broker.seats,
        max_sessions=broker.max_sessions,
        drain=broker.drain,
    )


def _device(device: DeviceReport, own: set[int]) -> DeviceReport:
    return DeviceReport(
        name=device.name,
        kind=device.kind,
        capacity_bytes=device.capacity_bytes,
        policy=device.policy,
        lanes=tuple(_lane(lane, own) for lane in device.lanes),
        state=device.state,
        used_bytes=device.used_bytes,
        threads=device.threads,
        restarts=device.restarts,
        last_end=_end(device.last_end),
    )


def _lane(lane: LaneReport, own: set[int]) -> LaneReport:
    return LaneReport(
        id=lane.id,
        capacity_bytes=lane.capacity_bytes,
        sessions=lane.sessions,
        running=lane.running,
        state=lane.state,
        running_seconds=lane.running_seconds,
        running_since=lane.running_since,
        op=lane.op if lane.running in own else "",
    )


def _end(end: EndReport | None) -> EndReport | None:
    """When it was; whose work it was, and how, is for those who see everybody."""
    return None if end is None else EndReport(when=end.when, how="")


def _session(session: SessionReport, seen: set[str]) -> SessionReport:
    visible = session.user in seen
    return SessionReport(
        id=session.id,
        user=session.user if visible else SOMEBODY,
        state=session.state,
        lane=session.lane,
        resident_bytes=session.resident_bytes,
        ephemeral_bytes=session.ephemeral_bytes,
        spilled_bytes=session.spilled_bytes,
        spilled_resident_bytes=session.spilled_resident_bytes,
        device_seconds=session.device_seconds,
        iterations=session.iterations,
        iteration_seconds=session.iteration_seconds,
        queue_position=session.queue_position,
        waits_for=tuple(user if user in seen else SOMEBODY for user in session.waits_for),
        waits_on=session.waits_on if visible else "",
        ahead=session.ahead if visible else None,
        waits_since=session.waits_since,
        label=session.label if visible else "",
        cell=session.cell if visible else "",
        age_seconds=session.age_seconds,
        since=session.since,
    )
