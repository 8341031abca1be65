"""Salus' inference packing (MLSys 2020, Figure 10): 42 jobs on one GPU, latency against load.

Fourteen models, three jobs of each, all kept on the device. Salus states an added latency below
5 ms and publishes no rate of requests; so here is the curve, and the load at which its mean
reaches 5 ms. Requests come independently of each other (Poisson), equally often for every job.
"""

from __future__ import annotations

from math import ceil
from statistics import median
from typing import TYPE_CHECKING, Final

from jgpu.sched.core import Core
from jgpu.sched.simulate.arrivals import poisson
from jgpu.sched.simulate.clock import Clock
from jgpu.sched.simulate.device import Hardware, SimulatedDevice
from jgpu.sched.simulate.requests import Server
from jgpu.sched.simulate.results import mean, percentile
from jgpu.simulate.chart import Chart, Line
from jgpu.simulate.report import SimulationReport, Table, at_least, chance_of, numbers, published

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from jgpu.sched.simulate.traces import Row

__all__ = ["add_options", "simulate"]

_COPIES: Final = 3
_SALUS_MS: Final = 5.0
_LOADS: Final = (0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)


def add_options(parser: argparse.ArgumentParser) -> None:
    """What can be said about it on the command line."""
    parser.add_argument(
        "--loads", type=numbers, default=_LOADS, metavar="L,...", help="parts of the device's time"
    )
    parser.add_argument(
        "--policies", default="fair,srtf,fifo", metavar="NAME,...", help="(default: fair,srtf,fifo)"
    )
    parser.add_argument(
        "--requests", type=at_least(1, int), default=100, help="per job and load (default: 100)"
    )
    parser.add_argument(
        "--piece-ms",
        type=at_least(0.1),
        default=5.0,
        help="longest program that a request is sent in (default: 5)",
    )


def simulate(options: argparse.Namespace) -> SimulationReport:
    """Run it."""
    rows = published("salus_inference.csv", "model", "salus_ms", "alone_ms")
    policies = options.policies.split(",")
    curves = {
        policy: [(load, _latencies(rows, policy, load, options)) for load in sorted(options.loads)]
        for policy in policies
    }
    means = {
        policy: [(load, mean([added for _, added in found])) for load, found in curve]
        for policy, curve in curves.items()
    }
    reached = {policy: _reaches(curve) for policy, curve in means.items()}
    by_load = [
        [f"{load:g}"] + [value for policy in policies for value in _row(curves[policy][place][1])]
        for place, load in enumerate(sorted(options.loads))
    ]
    columns = ["load"] + [f"{p} {what}" for p in policies for what in ("mean", "median", "worst")]
    theirs = [row.number("salus_ms") - row.number("alone_ms") for row in rows]
    lines = [Line(policy, curve) for policy, curve in means.items()]
    return SimulationReport(
        title=f"Salus, Figure 10: {len(rows) * _COPIES} inference jobs on one GPU; milliseconds",
        tables=[
            Table("Added latency by job (over the jobs: mean, median, worst)", columns, by_load),
            Table(
                "Beside Salus' bars (rate unknown, so the same load cannot be set)",
                ["", "mean added", "median added", "worst added"],
                [["Salus, read off by eye", mean(theirs), median(theirs), max(theirs)]],
            ),
            _by_model(rows, policies[0], curves[policies[0]]),
        ],
        findings=[_finding(policy, load) for policy, load in reached.items()],
        assumes=[
            "latency alone: TensorFlow's bars of the figure (within 5 %); the device is taken to "
            "be busy all that time, and one request at a time has it (one lane), the worst "
            "case: at batch size 1 the device could run several",
            f"a request is sent in programs of at most {options.piece_ms:g} ms; between two of "
            "them another job may come in",
            "load: the part of the time for which the requests keep the device busy",
        ],
        leaves_out=[
            "the host's part (recording, sending, answering; some 0.2 ms a request), memory",
        ],
        chart=Chart([("Added latency", "load", "mean over the jobs, ms", lines)]),
        more={"load_at_5_ms": reached},
    )


def _latencies(
    rows: Sequence[Row], policy: str, load: float, options: argparse.Namespace
) -> list[tuple[str, float]]:
    """Return model and mean added milliseconds of each job."""
    chance = chance_of("inference", options.seed, load)
    clock = Clock()
    device = SimulatedDevice(clock, Core(policy), Hardware())
    rate = load / (_COPIES * sum(row.number("alone_ms") for row in rows) / 1000)
    servers = []
    for session in range(1, len(rows) * _COPIES + 1):
        row = rows[(session - 1) // _COPIES]
        alone_s = row.number("alone_ms") / 1000
        pieces = ceil(row.number("alone_ms") / options.piece_ms)
        arrivals = poisson(chance, options.requests, rate)
        programs = (alone_s / pieces,) * pieces
        name = f"user{session}"
        server = Server(clock, device, session, name, programs, arrivals)
        servers.append((row.text("model"), alone_s, server))
    clock.run()
    return [
        (model, (mean(server.latencies) - alone_s) * 1000) for model, alone_s, server in servers
    ]


def _row(found: Sequence[tuple[str, float]]) -> list[float]:
    added = [each for _, each in found]
    return [mean(added), percentile(added, 50), max(added)]


def _reaches(curve: Sequence[tuple[float, float]]) -> float | None:
    """Return the load at which a curve crosses Salus' 5 ms; None where it does not."""
    before = (0.0, 0.0)
    for load, added in curve:
        if added >= _SALUS_MS:
            part = (_SALUS_MS - before[1]) / (added - before[1])
            return before[0] + part * (load - before[0])
        before = (load, added)
    return None


def _finding(policy: str, load: float | None) -> str:
    if load is None:
        return f"{policy}: the mean added latency stays below 5 ms at every load that was tried"
    return f"{policy}: the mean added latency reaches 5 ms at a load of {load:.2f}"


def _by_model(
    rows: Sequence[Row], policy: str, curve: Sequence[tuple[float, Sequence[tuple[str, float]]]]
) -> Table:
    loads = [point for point in curve if any(abs(point[0] - each) < 1e-9 for each in (0.2, 0.5))]
    table: list[list[str | float]] = []
    for row in rows:
        model, alone = row.text("model"), row.number("alone_ms")
        ours = [mean([added for name, added in found if name == model]) for _, found in loads]
        salus = row.number("salus_ms") - alone
        table.append([model, alone, salus, row.number("mps_ms") - alone, *ours])
    columns = ["model", "alone", "added by Salus", "by MPS", *(f"load {x:g}" for x, _ in loads)]
    return Table(f"Added latency by model under {policy}", columns, table)
