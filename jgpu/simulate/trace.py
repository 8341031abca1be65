"""A trace of your own: a file with one job a line, under several policies side by side.

The first line names the columns. `arrival_s`, `duration_s` (device time alone) and `iterations`
must be there; `name`, `user`, `load`, `resident_bytes`, `kept_bytes`, `transient_bytes`, `host_s`
(of an iteration) and `startup_s` may be.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from jgpu.errors import ConfigError
from jgpu.sched.simulate.device import Hardware
from jgpu.sched.simulate.engine import Grain, run_jobs
from jgpu.sched.simulate.traces import read_jobs
from jgpu.simulate.classroom import size
from jgpu.simulate.report import SimulationReport, at_least, read_lines
from jgpu.simulate.sidebyside import chart_of, table_of

if TYPE_CHECKING:
    import argparse

__all__ = ["add_options", "simulate"]


def add_options(parser: argparse.ArgumentParser) -> None:
    """What can be said about it on the command line."""
    parser.add_argument("file", type=Path, metavar="FILE.csv", help="the trace")
    parser.add_argument(
        "--policies",
        default="fifo,srtf,las,fair",
        metavar="NAME,...",
        help="(default: fifo,srtf,las,fair)",
    )
    parser.add_argument("--gpu-memory", type=size, default=size("16G"), help="(default: 16G)")
    parser.add_argument("--lanes", type=at_least(1, int), default=1, help="(default: 1)")
    parser.add_argument(
        "--grain",
        type=at_least(1e-4),
        default=0.0,
        metavar="S",
        help="make iterations about so long, the scheduler's limits alike (default: as they are)",
    )


def simulate(options: argparse.Namespace) -> SimulationReport:
    """Run it."""
    jobs = read_jobs(read_lines(options.file), str(options.file))
    for job in jobs:
        memory = job.memory
        if memory.resident + memory.kept + memory.transient > options.gpu_memory:
            raise ConfigError(
                f"{options.file}: {job.name} needs {memory.resident} + {memory.kept} + "
                f"{memory.transient} bytes, and the device has {options.gpu_memory} (--gpu-memory)."
            )
    usual_s = sum(job.service_s for job in jobs) / sum(
        cell.iterations for job in jobs for cell in job.cells
    )
    grain = Grain(options.grain, instead_of_s=usual_s) if options.grain else None
    hardware = Hardware(options.lanes, options.gpu_memory, look_s=0.25)
    runs = {
        policy: run_jobs(jobs, policy, hardware=hardware, grain=grain)
        for policy in options.policies.split(",")
    }
    return SimulationReport(
        title=f"{options.file}: {len(jobs)} jobs on one device, {options.lanes} lane(s); seconds",
        tables=[table_of(runs, "Policies side by side")],
        assumes=[
            "srtf is told how long jobs last, the others are not",
            *([f"iterations of {options.grain:g} s"] if options.grain else []),
        ],
        leaves_out=[
            "the host's CPUs, data loading, and how jobs slow each other beyond their loads"
        ],
        chart=chart_of(runs),
    )
