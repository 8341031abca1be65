"""What one decision of the scheduler costs, in real processor time, by number of sessions.

Sessions train without end on simulated devices, one core each. What is timed is `Core.handle`
alone: each event that a device or a client brings about, with the actions that answer it.
"""

from __future__ import annotations

import gc
from dataclasses import dataclass, field
from time import thread_time
from typing import TYPE_CHECKING, Any, Final

from jgpu.sched.core import Core
from jgpu.sched.simulate.clock import Clock
from jgpu.sched.simulate.device import Hardware, SimulatedDevice
from jgpu.sched.simulate.jobs import Cell, SimulatedJob
from jgpu.sched.simulate.loop import LoopPace, TrainingLoop
from jgpu.sched.simulate.results import Log, mean, percentile
from jgpu.simulate.chart import Chart, Line
from jgpu.simulate.report import SimulationReport, Table, at_least, numbers

if TYPE_CHECKING:
    import argparse

    from jgpu.sched.actions import Action
    from jgpu.sched.events import Event

__all__ = ["add_options", "simulate"]

_SESSIONS: Final = (1.0, 8.0, 64.0, 1000.0, 10_000.0)
_GOAL_US: Final = 20.0
_GOAL_FEW_US: Final = 10.0
_FEW: Final = 64


@dataclass
class _Timed:
    """A core whose decisions are timed; everything else is the core's own."""

    core: Core
    times_s: list[float] = field(default_factory=list)

    def handle(self, event: Event, now: float) -> list[Action]:
        """Decide, and note what it took."""
        begin = thread_time()
        actions = self.core.handle(event, now)
        self.times_s.append(thread_time() - begin)
        return actions

    def __getattr__(self, name: str) -> Any:
        return getattr(self.core, name)


def add_options(parser: argparse.ArgumentParser) -> None:
    """What can be said about it on the command line."""
    parser.add_argument(
        "--sessions", type=numbers, default=_SESSIONS, metavar="N,...", help="(default: to 10,000)"
    )
    parser.add_argument("--devices", type=at_least(1, int), default=64, help="(default: 64)")
    parser.add_argument(
        "--most-on-one",
        type=at_least(1, int),
        default=1000,
        help="rows with up to so many sessions are measured on one device, too (default: 1000)",
    )
    parser.add_argument("--lanes", type=at_least(1, int), default=1, help="(default: 1)")
    parser.add_argument("--policy", default="fair", help="(default: fair)")
    parser.add_argument(
        "--events", type=at_least(1000, int), default=40_000, help="timed per row (default: 40000)"
    )


def simulate(options: argparse.Namespace) -> SimulationReport:
    """Run it."""
    rows: list[list[float | int]] = []
    spread: list[tuple[float, float]] = []
    one: list[tuple[float, float]] = []
    for count in sorted(int(each) for each in options.sessions):
        for devices in sorted({1, min(options.devices, count)}):
            if devices == 1 and count > options.most_on_one and options.devices > 1:
                continue
            times = _measure(count, devices, options)
            rows.append(_row(count, devices, times))
            (one if devices == 1 else spread).append((float(count), mean(times) * 1e6))
    findings = [*_findings("one device", one), *_findings(f"{options.devices} devices", spread)]
    curves = {"one device": one, f"{options.devices} devices": spread}
    lines = [Line(name, points) for name, points in curves.items() if points]
    return SimulationReport(
        title=f"Cost of a decision under {options.policy}; microseconds of this machine's time",
        tables=[
            Table(
                f"{options.lanes} lane(s) a device, iterations of 10 ms in two programs",
                ["sessions", "devices", "mean", "median", "p99", "of 1000, the worst"],
                rows,
            )
        ],
        findings=findings,
        assumes=[
            "every session is a user of its own and always has work; a decision is one event that "
            "the core is told, with everything that it asks for in return",
            "processor time of this thread (so what else the machine does counts little), with the "
            "0.3 us that reading that clock takes; garbage is collected between the rows",
        ],
        leaves_out=["decoding, launching, and the executor's own books"],
        chart=Chart([("Cost of a decision", "sessions", "microseconds, mean", lines)]),
    )


def _findings(where: str, points: list[tuple[float, float]]) -> list[str]:
    """Return what the means say beside the goals, and how they grow."""
    found = []
    few = [cost for count, cost in points if count <= _FEW]
    if few:
        found.append(
            f"up to {_FEW} sessions on {where}: {max(few):.1f} us (goal: {_GOAL_FEW_US:g})"
        )
    if points:
        (least, cheap), (most, dear) = points[0], points[-1]
        found.append(
            f"{most:g} sessions on {where}: {dear:.1f} us (goal: {_GOAL_US:g}), {dear / cheap:.1f} "
            f"times the cost of {least:g}"
        )
    return found


def _measure(count: int, devices: int, options: argparse.Namespace) -> list[float]:
    """Return what each decision took, once all sessions have begun."""
    clock, log = Clock(), Log()
    cores = [_Timed(Core(options.policy)) for _ in range(devices)]
    hardware = Hardware(lanes=options.lanes)
    machines = [SimulatedDevice(clock, core, hardware) for core in cores]  # type: ignore[arg-type]
    for session in range(1, count + 1):
        arrival_s = session * 1e-6
        job = SimulatedJob(
            "endless", f"user{session}", arrival_s, (Cell(10**9, 0.010, programs=2),)
        )
        TrainingLoop(
            clock, machines[session % devices], session, job, log, LoopPace(segment_s=0.0025)
        )
    clock.run(0.5)
    for core in cores:
        core.times_s.clear()
    gc.collect()
    while sum(len(core.times_s) for core in cores) < options.events:
        clock.run(clock.now + 0.1)
    return [each for core in cores for each in core.times_s]


def _row(count: int, devices: int, times: list[float]) -> list[float | int]:
    us = [each * 1e6 for each in times]
    return [count, devices, mean(us), percentile(us, 50), percentile(us, 99), percentile(us, 99.9)]
