"""Gandiva's packing (Xiao et al., OSDI 2018, Table 1): gain where there is some, never a loss.

Copies of each job of the table run under `pack`, which tries a lane more and takes it back where
that makes less of the device. How the copies hinder each other is calibrated to the table itself
(`jgpu.sched.simulate.rates`); what is shown is what the rule makes of it without being told.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from jgpu.sched.simulate.device import Hardware
from jgpu.sched.simulate.engine import run_jobs
from jgpu.sched.simulate.jobs import Cell, SimulatedJob
from jgpu.sched.simulate.loop import LoopPace
from jgpu.sched.simulate.rates import packing_load
from jgpu.simulate.report import SimulationReport, Table, at_least, published

if TYPE_CHECKING:
    import argparse

    from jgpu.sched.simulate.traces import Row

__all__ = ["add_options", "simulate"]

_COLUMNS: Final = ("model", "gpu_util_percent", "time_sliced_mb_s", "packed_mb_s")


def add_options(parser: argparse.ArgumentParser) -> None:
    """What can be said about it on the command line."""
    parser.add_argument(
        "--copies", type=at_least(2, int), default=8, help="of a job, side by side (default: 8)"
    )
    parser.add_argument(
        "--lanes", type=at_least(1, int), default=8, help="lanes at most (default: 8)"
    )
    parser.add_argument(
        "--seconds", type=at_least(1), default=60.0, help="a copy's work alone (default: 60)"
    )


def simulate(options: argparse.Namespace) -> SimulationReport:
    """Run it."""
    rows: list[list[str | float]] = []
    losses: list[float] = []
    for row in published("gandiva_packing.csv", *_COLUMNS):
        sliced, packed = row.number("time_sliced_mb_s"), row.number("packed_mb_s")
        plain = _throughput(row, "fair", 1, options)
        tried = _throughput(row, "fair", 2, options)
        ours = _throughput(row, "pack", options.lanes, options)
        utilisation, gain = row.number("gpu_util_percent"), ours / plain
        theirs = packed / sliced
        percents = [_percent(each) for each in (theirs, gain, tried / plain)]
        rows.append([row.text("model"), utilisation, sliced, packed, ours, *percents])
        losses.append(gain - 1)
    columns = ["model", "util %", "sliced mb/s", "Gandiva packed", "ours packed"]
    columns += ["Gandiva", "ours", "two lanes always"]
    return SimulationReport(
        title="Gandiva, Table 1: copies of one job on one GPU, in mini-batches a second",
        tables=[Table(f"{options.copies} copies, at most {options.lanes} lanes", columns, rows)],
        findings=[f"the worst of ours against time-slicing: {min(losses) * 100:+.2f} %"],
        assumes=[
            "a copy's load is its throughput time-sliced over its throughput packed, both "
            "from the table; n copies do min(n, 1 / load) times the work of one",
            f"each copy has {options.seconds:g} s of work; the scheduler's limits are the live "
            "ones (a trial of a lane lasts half a second, a lane must gain 2 %)",
        ],
        leaves_out=[
            "memory, unequal neighbours, measured times that vary; how many copies Gandiva packed "
            "is not in the table",
        ],
    )


def _throughput(row: Row, policy: str, lanes: int, options: argparse.Namespace) -> float:
    """Return the mini-batches a second of all copies together."""
    sliced, packed = row.number("time_sliced_mb_s"), row.number("packed_mb_s")
    cell = Cell(max(1, round(options.seconds * sliced)), 1 / sliced)
    load = packing_load(sliced, packed)
    jobs = [
        SimulatedJob(row.text("model"), f"user{copy}", 0.0, (cell,), load=load)
        for copy in range(options.copies)
    ]
    run = run_jobs(jobs, policy, hardware=Hardware(lanes=lanes), pace=LoopPace(segment_s=1.0))
    mini_batches: int = options.copies * cell.iterations
    return mini_batches / max(job.ended_s for job in run.jobs)


def _percent(ratio: float) -> str:
    return f"{(ratio - 1) * 100:+.1f} %"
