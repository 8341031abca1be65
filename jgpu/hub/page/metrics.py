"""`/metrics` for Prometheus: what the broker reports, with labels whose number is bounded.

Labels are devices, lanes, kinds and states, and the first groups by name; users only where the
page's administrator asked for them. Behind a token, or for this host alone.
"""

import hmac
import ipaddress
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from tornado.web import HTTPError, RequestHandler

from jgpu.errors import JgpuError
from jgpu.hub.page.broker import BrokerLink
from jgpu.hub.page.figures import KINDS, Figures
from jgpu.hub.page.now import memory_of
from jgpu.wire.limits import MAX_EVENTS
from jgpu.wire.messages import AskEvents
from jgpu.wire.records import decode_events
from jgpu.wire.report import Report, UserReport

__all__ = ["Collector", "Metrics", "MetricsSettings"]

_STATES: Final = ("running", "waiting", "idle", "starting", "spilled", "paused", "lost")
_REST: Final = "(others)"
#: what a proxy adds, so who is behind it is not this host
_FORWARDED: Final = ("X-Forwarded-For", "X-Real-Ip", "Forwarded", "Via")
#: questions about events for one answer
_ASKED: Final = 10


@dataclass(frozen=True, slots=True)
class MetricsSettings:
    """Who may read them, and how many labels there are."""

    #: the token that is asked for; empty: this host alone
    token: str = ""
    #: groups that are told apart
    groups: int = 20
    #: figures of each user by name
    users: bool = False


class Collector:
    """Makes metrics of the last report and what was counted; the registry's shape."""

    def __init__(self, link: BrokerLink, settings: MetricsSettings) -> None:
        self._link = link
        self._settings = settings

    def collect(self) -> Iterator[Metric]:
        """All metrics, as they are now."""
        report, figures = self._link.report, self._link.figures
        up = bool(report) and not self._link.problem
        yield GaugeMetricFamily("jgpu_up", "Whether the broker answers.", value=float(up))
        yield from _counted(figures)
        if report is not None and up:
            yield from _devices(report)
            yield from _sessions(report)
            yield from _groups(report.users, self._settings.groups)
            if self._settings.users:
                yield from _users(report.users)


def _counted(figures: Figures) -> Iterator[Metric]:
    for name, help_text, found in (
        ("jgpu_wait_seconds", "Time that sessions waited for a turn.", figures.waits),
        (
            "jgpu_iteration_seconds",
            "Device time of iterations; those between two reports count with their mean.",
            figures.iterations,
        ),
    ):
        family = HistogramMetricFamily(name, help_text)
        family.add_metric([], found.buckets, sum_value=found.sum)
        yield family
    events = CounterMetricFamily("jgpu_events", "Refusals, faults, spills ...", labels=["kind"])
    for kind in KINDS:
        events.add_metric([kind], figures.events[kind])
    yield events


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


_DEVICE: Final = ["device"]


class Metrics(RequestHandler):
    """What a monitoring system reads."""

    async def get(self) -> None:
        """All metrics, in the form that is asked for."""
        self._check()
        link: BrokerLink = self.settings["link"]
        await _count_events(link)
        registry = CollectorRegistry()
        registry.register(Collector(link, self.settings["metrics"]))
        encode, kind = choose_encoder(self.request.headers.get("Accept", ""))
        self.set_header("Content-Type", kind)
        self.finish(encode(registry))

    def _check(self) -> None:
        """Raise 403 for whom they are not for."""
        token = self.settings["metrics"].token
        if token:
            given = self.request.headers.get("Authorization", "").removeprefix("Bearer ")
            if hmac.compare_digest(given.encode(), token.encode()):
                return
        elif self._is_local():
            return
        raise HTTPError(403)

    def _is_local(self) -> bool:
        """Whether a program of this host asks, and not for somebody behind a proxy."""
        if any(name in self.request.headers for name in _FORWARDED):
            return False
        try:
            return ipaddress.ip_address(self.request.remote_ip or "").is_loopback
        except ValueError:  # a Unix socket
            return False


async def _count_events(link: BrokerLink) -> None:
    """Count what happened since the last time; a broker without a record has none."""
    before = 0
    found: list[Any] = []
    try:
        for _ in range(_ASKED):
            rows = decode_events((await link.ask(AskEvents(before, MAX_EVENTS))).json).events
            found += rows
            newest = link.figures.newest
            if len(rows) < MAX_EVENTS or newest is None or rows[-1].id <= newest:
                break
            before = rows[-1].id
    except JgpuError:
        return
    link.figures.take_events(found)
