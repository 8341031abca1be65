"""The 60-job trace that comes with Tiresias (Gu et al., NSDI 2019), on one device.

Jobs for several GPUs are left out, or folded: their device time is that of all their GPUs. The
policies stand side by side; Tiresias' own figures are from a cluster and other traces.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from jgpu.sched.policies.las import LeastAttainedService
from jgpu.sched.simulate.engine import Grain, run_jobs
from jgpu.sched.simulate.jobs import Cell, SimulatedJob
from jgpu.simulate.report import SimulationReport, at_least, published
from jgpu.simulate.sidebyside import chart_of, table_of

if TYPE_CHECKING:
    import argparse

__all__ = ["add_options", "simulate"]

_POLICIES: Final = ("fifo", "srtf", "las", "fair")
#: mean, median and 95th percentile of completion times against YARN's capacity scheduler (first
#: come first served), in Tiresias' simulation of its large trace
_PUBLISHED: Final = (2.41, 30.9, 1.25)


def add_options(parser: argparse.ArgumentParser) -> None:
    """What can be said about it on the command line."""
    parser.add_argument("--folded", action="store_true", help="jobs for several GPUs, too")
    parser.add_argument(
        "--grain", type=at_least(0.2), default=2.0, metavar="S", help="iterations (default: 2)"
    )


def simulate(options: argparse.Namespace) -> SimulationReport:
    """Run it."""
    jobs = _jobs(folded=options.folded)
    runs = {policy: run_jobs(jobs, policy, grain=Grain(options.grain)) for policy in _POLICIES}
    published_row = ["Tiresias-L, its cluster", *[None] * 5, *_PUBLISHED]
    thresholds = ", ".join(f"{each:g}" for each in LeastAttainedService.thresholds_s)
    what = "all, folded onto one device" if options.folded else "those for one GPU"
    return SimulationReport(
        title=f"Tiresias' 60-job trace: {len(jobs)} jobs ({what}); seconds",
        tables=[table_of(runs, "Policies side by side", [published_row])],
        assumes=[
            "every job is a user of its own; srtf knows durations, las and fair do not",
            f"las: {len(LeastAttainedService.thresholds_s) + 1} queues, thresholds {thresholds} s; "
            "half of these jobs last 121 s, past a threshold just before they end, which is the "
            "worst that can happen to queues",
            f"iterations of {options.grain:g} s stand for such of 0.2 s, limits scaled alike",
        ],
        leaves_out=[
            "memory, start-up, host time, placement on several GPUs; Tiresias' figures are from a "
            "cluster and a trace with a far heavier tail, this one's jobs last 2 to 30 minutes",
        ],
        chart=chart_of(runs),
    )


def _jobs(*, folded: bool) -> list[SimulatedJob]:
    columns = ("job_id", "num_gpu", "submit_time", "iterations", "model_name", "duration")
    jobs = []
    for row in published("tiresias_60_job.csv", *columns):
        gpus = row.whole("num_gpu", least=1)
        if gpus > 1 and not folded:
            continue
        iterations = row.whole("iterations", least=1)
        cell = Cell(iterations, row.number("duration") * gpus / iterations)
        name = f"{row.text('job_id')} {row.text('model_name')}"
        user = f"user{row.whole('job_id')}"
        jobs.append(SimulatedJob(name, user, row.number("submit_time"), (cell,)))
    return jobs
