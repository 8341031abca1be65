"""The broker's report as metrics for Prometheus, with labels whose number is bounded.

Labels are devices, lanes, kinds, reasons and states, and the first groups by name; users only where
the page's administrator asked for them. Executors and the broker count; a new one counts from zero,
which Prometheus expects of counters.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import accumulate
from typing import Final, Protocol

from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)

from jgpu.hub.page.now.values import memory_of
from jgpu.wire.reports.report import DeviceReport, Report, TimesReport, UserReport

__all__ = ["Collector", "MetricsSettings"]

_STATES: Final = ("running", "waiting", "idle", "starting", "spilled", "paused", "lost")
_REST: Final = "(others)"
_DEVICE: Final = ["device"]


@dataclass(frozen=True, slots=True)
class MetricsSettings:
    """Who may read them, and how many labels there are."""

    #: the token that is asked for; empty: this host alone
    token: str = ""
    #: groups that are told apart
    groups: int = 20
    #: figures of each user by name
    users: bool = False


class _Source(Protocol):
    """What is known of the broker."""

    report: Report | None
    problem: str


class Collector:
    """Makes metrics of the last report and of the events so far; the registry's shape."""

    def __init__(
        self, source: _Source, events: Mapping[str, int], settings: MetricsSettings
    ) -> None:
        self._source = source
        self._events = events
        self._settings = settings

    def collect(self) -> Iterator[Metric]:
        """All metrics, as they are now."""
        report = self._source.report
        up = bool(report) and not self._source.problem
        yield GaugeMetricFamily("jgpu_up", "Whether the broker answers.", value=float(up))
        yield _by_label("jgpu_events", "Refusals, faults, spills ...", "kind", self._events)
        if report is not None and up:
            yield from _devices(report)
            yield from _measures(report.devices)
            yield from _sessions(report)
            yield from _groups(report.users, self._settings.groups)
            if self._settings.users:
                yield from _users(report.users)


def _by_label(
    name: str, help_text: str, label: str, counts: Mapping[str, float]
) -> CounterMetricFamily:
    family = CounterMetricFamily(name, help_text, labels=[label])
    for value, count in counts.items():
        family.add_metric([value], count)
    return family


def _measures(devices: Iterable[DeviceReport]) -> Iterator[Metric]:
    """What executors counted."""
    waits = HistogramMetricFamily(
        "jgpu_wait_seconds", "How long sessions waited before they ran.", labels=_DEVICE
    )
    iterations = HistogramMetricFamily(
        "jgpu_iteration_seconds", "Device time of iterations.", labels=_DEVICE
    )
    programs = HistogramMetricFamily(
        "jgpu_program_seconds", "Device time of single programs.", labels=_DEVICE
    )
    moves = CounterMetricFamily(
        "jgpu_moves", "Times that memory went to the host (spill) or came back (restore).",
        labels=["device", "kind"],
    )  # fmt: skip
    moved = CounterMetricFamily("jgpu_moved_bytes", "Bytes of these.", labels=["device", "kind"])
    for device in devices:
        found = device.measures
        _add(waits, device.name, found.waits)
        _add(iterations, device.name, found.iterations)
        _add(programs, device.name, found.programs)
        for kind, times, size in (
            ("spill", found.spills, found.spilled_bytes),
            ("restore", found.restores, found.restored_bytes),
        ):
            moves.add_metric([device.name, kind], times)
            moved.add_metric([device.name, kind], size)
    yield from (waits, iterations, programs, moves, moved)


def _add(family: HistogramMetricFamily, device: str, times: TimesReport) -> None:
    """One device's, which counts by bucket; Prometheus wants what is not above each bound."""
    bounds = [*(f"{bound:g}" for bound in times.bounds), "+Inf"]
    counts = times.counts or (0,) * len(bounds)
    buckets = [
        (bound, float(below)) for bound, below in zip(bounds, accumulate(counts), strict=True)
    ]
    family.add_metric([device], buckets, sum_value=times.seconds)


def _devices(report: Report) -> Iterator[Metric]:
    capacity = GaugeMetricFamily("jgpu_device_capacity_bytes", "Memory to share.", labels=_DEVICE)
    used = GaugeMetricFamily("jgpu_device_used_bytes", "Of it in use.", labels=_DEVICE)
    ready = GaugeMetricFamily("jgpu_device_ready", "Whether it computes.", labels=_DEVICE)
    restarts = CounterMetricFamily("jgpu_executor_restarts", "Its executor's.", labels=_DEVICE)
    lanes = GaugeMetricFamily(
        "jgpu_lane_busy", "Whether a session has its turn.", labels=["device", "lane"]
    )
    for device in report.devices:
        capacity.add_metric([device.name], device.capacity_bytes)
        used.add_metric([device.name], device.used_bytes)
        ready.add_metric([device.name], float(device.state == "ready"))
        restarts.add_metric([device.name], device.restarts)
        for lane in device.lanes:
            lanes.add_metric([device.name, str(lane.id)], float(lane.running is not None))
    yield from (capacity, used, ready, restarts, lanes)


def _sessions(report: Report) -> Iterator[Metric]:
    rows = report.sessions
    memory = GaugeMetricFamily(
        "jgpu_memory_bytes", "Memory of all sessions: resident, ephemeral, spilled to the host.",
        labels=["kind"],
    )  # fmt: skip
    found = memory_of(*rows)
    memory.add_metric(["resident"], found.resident)
    memory.add_metric(["ephemeral"], found.ephemeral)
    memory.add_metric(["spilled"], found.spilled)
    sessions = GaugeMetricFamily("jgpu_sessions", "Sessions by state.", labels=["state"])
    for state in _STATES:
        sessions.add_metric([state], sum(row.state == state for row in rows))
    yield memory
    yield sessions
    yield GaugeMetricFamily(
        "jgpu_seats", "Kernels that are there or about to be.", value=report.broker.seats
    )
    yield _by_label(
        "jgpu_refusals", "Requests that were refused, by reason.", "reason", report.broker.refusals
    )
    used = CounterMetricFamily("jgpu_device_seconds", "Device time since the broker began.")
    used.add_metric([], sum(user.device_seconds for user in report.users))
    yield used
    if report.ledger:
        yield GaugeMetricFamily(
            "jgpu_ledger_unwritten_rows",
            "Rows of the record of usage that wait to be written.",
            value=report.ledger.unwritten_rows,
        )


def _groups(users: Iterable[UserReport], most: int) -> Iterator[Metric]:
    """By group; who is in several counts in each, groups beyond the first are one."""
    sums: dict[str, float] = {}
    for user in users:
        for group in user.groups:
            sums[group] = sums.get(group, 0.0) + user.device_seconds
    names = sorted(sums)
    family = CounterMetricFamily(
        "jgpu_group_device_seconds", "Device time by group, since the broker began.",
        labels=["group"],
    )  # fmt: skip
    for name in names[:most]:
        family.add_metric([name], sums[name])
    if rest := names[most:]:
        family.add_metric([_REST], sum(sums[name] for name in rest))
    yield family


def _users(users: Iterable[UserReport]) -> Iterator[Metric]:
    used = CounterMetricFamily(
        "jgpu_user_device_seconds", "Device time by user, since the broker began.", labels=["user"]
    )
    memory = GaugeMetricFamily(
        "jgpu_user_memory_bytes", "Memory on the device by user.", labels=["user", "kind"]
    )
    for user in users:
        used.add_metric([user.name], user.device_seconds)
        memory.add_metric([user.name, "resident"], user.resident_bytes)
        memory.add_metric([user.name, "ephemeral"], user.ephemeral_bytes)
    yield from (used, memory)
