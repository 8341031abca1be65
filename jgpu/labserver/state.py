"""What a page is told: the broker's report, as far as it concerns the server's owner.

Pure. Sizes are bytes, times seconds, moments seconds since the epoch; figures that merely grow are
rounded. Nothing is null: what is not known is not there.
"""

from typing import Any, Final

from jgpu.labserver.patches import without_nulls
from jgpu.labserver.rounding import round_bytes, round_moment, round_seconds
from jgpu.wire.reports.report import SOMEBODY, DeviceReport, Report, SessionReport, UserReport

__all__ = ["Moments", "State", "is_own", "kernel_sessions", "state_of"]

State = dict[str, Any]

#: characters of a notebook's path, a kernel's id and a cell's name
_PATH: Final = 1024
_NAME: Final = 128


class Moments:
    """Since when each session is in its state, and each lane at its session."""

    def __init__(self) -> None:
        self._states: dict[int, tuple[str, float]] = {}
        self._lanes: dict[int, tuple[int | None, float]] = {}

    def take(self, report: Report, now: float) -> None:
        """A newer report; what is not in it is forgotten."""
        self._states = {
            row.id: _kept(self._states.get(row.id), row.state, now) for row in report.sessions
        }
        self._lanes = {
            lane.id: _kept(self._lanes.get(lane.id), lane.running, now)
            for device in report.devices[:1]
            for lane in device.lanes
        }

    def of_session(self, number: int) -> float:
        """When a session came into its state."""
        return self._states[number][1]

    def of_lane(self, number: int) -> float:
        """When a lane came to its session, or to none."""
        return self._lanes[number][1]


def _kept(before: tuple[Any, float] | None, value: Any, now: float) -> tuple[Any, float]:
    return before if before is not None and before[0] == value else (value, now)


def state_of(report: Report, moments: Moments, claimed: str = "") -> State:
    """What a report says; `moments` have taken it.

    `claimed`: the name that the owner's kernels go by at a broker of their own.
    """
    broker = report.broker
    return without_nulls(
        {
            "drain": broker.drain,
            "drain_text": broker.drain_text if broker.drain else "",
            "kernels": {
                kernel: _kernel(row, moments) for kernel, row in kernel_sessions(report).items()
            },
            "share": _share(report, claimed),
            "device": _device(report, moments),
        }
    )


def is_own(report: Report, row: SessionReport) -> bool:
    """Whether a session is the asker's, whatever else they may see."""
    if report.broker.private:
        return True
    if report.broker.asker:
        return row.user == report.broker.asker
    return row.pid is not None  # an older broker, which tells it of the asker's own alone


def kernel_sessions(report: Report) -> dict[str, SessionReport]:
    """The owner's sessions by kernel; of a kernel that has two the newer one."""
    rows = sorted(report.sessions, key=lambda row: row.id)
    return {row.kernel_id[:_NAME]: row for row in rows if row.kernel_id and is_own(report, row)}


def _kernel(row: SessionReport, moments: Moments) -> State:
    waits = row.waits_since is not None
    return without_nulls(
        {
            "session": row.id,
            "path": row.label[:_PATH],
            "state": row.state,
            "since": round_moment(moments.of_session(row.id)),
            "waits_on": row.waits_on,
            "waits_since": round_moment(row.waits_since or 0.0) if waits else None,
            "ahead": row.ahead,
            "behind": [_shown(user) for user in row.waits_for],
            "lane": row.lane,
            "cell": row.cell[:_NAME],
            "held": round_bytes(row.resident_on_device + row.ephemeral_on_device),
            "model": round_bytes(row.resident_on_device),
            "kept": round_bytes(row.ephemeral_on_device),
            "spilled": round_bytes(row.spilled_bytes),
            "device_seconds": round_seconds(row.device_seconds),
            "iterations": row.iterations,
            "iteration_seconds": round_seconds(row.iteration_seconds.median),
            "cell_seconds": _cell_seconds(row),
            "cells": {name: round_seconds(seconds) for name, seconds in row.cells.items()},
        }
    )


def _cell_seconds(row: SessionReport) -> float:
    """Of the cell that runs, else of the one that used the device last."""
    last = next(reversed(row.cells), "")
    return round_seconds(row.cells.get(row.cell or last, 0.0))


def _share(report: Report, claimed: str) -> State | None:
    row = _owner(report, claimed)
    if row is None:
        return None
    quota = row.quota
    return without_nulls(
        {
            "user": row.name,
            "weight": row.weight,
            "sessions": row.sessions,
            "most_sessions": quota.sessions,
            "used": round_bytes(row.resident_bytes + row.ephemeral_bytes),
            "memory": quota.memory,
            "resident": round_bytes(row.resident_bytes),
            "most_resident": quota.resident,
            "budget": quota.device_seconds,
            "period": quota.period,
            "spent": round_seconds(row.used_in_period),
            "state": row.state,
            "free_at": None if row.free_at is None else round_moment(row.free_at),
            "text": row.text,
        }
    )


def _owner(report: Report, claimed: str) -> UserReport | None:
    """The row of the server's owner, if the broker tells of them."""
    rows = {row.name: row for row in report.users}
    broker = report.broker
    for name in (claimed if broker.private else "", broker.asker):
        if name and name in rows:
            return rows[name]
    # An older broker does not say who asks; it tells most of themselves alone.
    return report.users[0] if not broker.asker and len(report.users) == 1 else None


def _device(report: Report, moments: Moments) -> State | None:
    if not report.devices:
        return None
    device = report.devices[0]
    return {
        "name": device.name,
        "kind": device.kind,
        "state": device.state,
        "note": device.note,
        "policy": device.policy,
        "capacity": device.capacity_bytes,
        "used": round_bytes(device.used_bytes),
        "lanes": _lanes(device, moments),
        "sessions": {str(row.id): _session(report, row) for row in report.sessions},
    }


def _lanes(device: DeviceReport, moments: Moments) -> State:
    return {
        str(lane.id): without_nulls(
            {
                "session": lane.running,
                "since": round_moment(moments.of_lane(lane.id)),
                "members": len(lane.sessions),
            }
        )
        for lane in device.lanes
    }


def _session(report: Report, row: SessionReport) -> State:
    return without_nulls(
        {
            "user": _shown(row.user),
            "own": is_own(report, row),
            "lane": row.lane,
            "state": row.state,
            "device_seconds": round_seconds(row.device_seconds),
        }
    )


def _shown(user: str) -> str:
    return "" if user == SOMEBODY else user
