"""A class at one assignment on one GPU: how long cells take, how fair it is, what memory holds.

Each student opens a notebook within the first minutes, thinks, and runs a cell that trains; again
and again. The same class runs under each policy that is asked for, and once with every student
alone, to know what a cell takes when nobody is in the way.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from jgpu.cli._simulate.chart import Chart, Line, distribution
from jgpu.cli._simulate.report import Report, Table, at_least, chance_of
from jgpu.errors import ConfigError
from jgpu.sched.simulate.arrivals import bursts, poisson, uniform
from jgpu.sched.simulate.device import Hardware
from jgpu.sched.simulate.engine import Grain, Run, contended_fairness, run_jobs
from jgpu.sched.simulate.jobs import Cell, Job, Memory
from jgpu.sched.simulate.loop import Pace
from jgpu.sched.simulate.results import mean, percentile

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

__all__ = ["add_options", "simulate", "size"]

_UNITS: Final = {"K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
_SAMPLES: Final = 300
#: students that begin together where they come in bursts
_BURST: Final = 8
#: iterations simulated at most; beyond that they are made longer, and the limits with them
_MOST_ITERATIONS: Final = 40_000
#: segments that an iteration is cut into
_SEGMENTS: Final = 4


def size(text: str) -> int:
    """Return the bytes of a size such as `16G`; for argparse."""
    import argparse

    number, unit = (text[:-1], _UNITS[text[-1]]) if text[-1:] in _UNITS else (text, 1)
    try:
        nbytes = int(float(number) * unit)
    except (ValueError, OverflowError):
        nbytes = -1
    if nbytes < 0:
        raise argparse.ArgumentTypeError(f"{text!r} is no size; write 500M or 16G")
    return nbytes


def add_options(parser: argparse.ArgumentParser) -> None:
    """What can be said about it on the command line."""
    whole, above = at_least(1, int), at_least(0.0)
    arguments: list[tuple[str, Any, Any, str]] = [
        ("--students", whole, 40, "notebooks, each of a user of its own"),
        ("--gpu-memory", size, size("16G"), "bytes of the device that they share"),
        ("--model-bytes", size, size("100M"), "parameters and optimizer state of one"),
        ("--kept-bytes", size, size("400M"), "what a notebook keeps beside, as its data set"),
        ("--transient-bytes", size, size("1G"), "what an iteration needs on top"),
        ("--iteration-ms", at_least(0.01), 20.0, "device time of an iteration"),
        ("--host-ms", above, 2.0, "time in Python before each"),
        ("--iterations", whole, 200, "iterations of a cell"),
        ("--cells", whole, 5, "cells that each student runs"),
        ("--think-s", above, 240.0, "mean time between two cells (exponential)"),
        ("--arrive-s", above, 300.0, "time within which all of them begin, on average"),
        ("--spread", above, 0.0, "of iterations per cell: deviation of their logarithm"),
        ("--lanes", whole, 1, "lanes at most"),
        ("--load", at_least(0.01), 1.0, "part of the device that one keeps busy; for lanes"),
        ("--link-bytes", size, size("10G"), "bytes a second between device and host"),
    ]
    for name, kind, default, text in arguments:
        parser.add_argument(name, type=kind, default=default, help=f"{text} (default: {default})")
    parser.add_argument(
        "--arrivals",
        choices=("uniform", "poisson", "bursts"),
        default="uniform",
        help="how students begin: anywhere in that time, independently, or eight at a time "
        "(default: uniform)",
    )
    parser.add_argument(
        "--policies", default="fair,fifo", metavar="NAME,...", help="(default: fair,fifo)"
    )


def simulate(options: argparse.Namespace) -> Report:
    """Run it."""
    _check(options)
    jobs = _students(options)
    grain = _grain(options)
    pace = Pace(segment_s=options.iteration_ms / 1000 / _SEGMENTS)
    hardware = Hardware(
        lanes=options.lanes,
        capacity=options.gpu_memory,
        link_bytes_per_s=max(1, options.link_bytes),
        look_s=0.25 * (grain.factor if grain else 1.0),
    )
    length_s = max(job.arrival_s + sum(c.think_s for c in job.cells) for job in jobs)
    length_s += sum(job.service_s for job in jobs)
    runs = {
        policy: run_jobs(
            jobs,
            policy,
            hardware=hardware,
            grain=grain,
            pace=pace,
            sample_s=length_s / _SAMPLES,
        )
        for policy in options.policies.split(",")
    }
    alone_s = _alone_s(jobs[0], options.iterations, hardware, grain)
    demand = sum(job.service_s for job in jobs) / max(
        max(job.ended_s for job in run.jobs) for run in runs.values()
    )
    return Report(
        title=f"A class of {options.students} on one GPU; a cell alone takes {alone_s:.3g} s",
        tables=[
            Table(
                "Cells: completion time in seconds, and times as long as alone",
                ["policy", "mean", "median", "p95", "worst", "mean x", "p95 x", "waited %"],
                [_cells(policy, run, alone_s) for policy, run in runs.items()],
            ),
            Table(
                "The class: minutes until all are done, device busy, fairness, most memory in GiB",
                ["policy", "minutes", "busy %", "Jain", "held", "spilled", "restored", "waiting"],
                [_whole(policy, run) for policy, run in runs.items()],
            ),
        ],
        findings=[
            f"the class keeps the device busy for {demand * 100:.0f} % of its time",
            *_advice(options, runs),
        ],
        assumes=[
            "Jain's index is taken over what those students were served who had work at both ends "
            f"of a span of {length_s / _SAMPLES:.0f} s, averaged over the spans; 1 is all alike",
            "a notebook's memory is known to be needed before its first iteration runs; an "
            f"iteration is launched in {_SEGMENTS} parts",
            "held: the models, kept memory on the device, and room for the lanes",
            *(
                [f"iterations made {grain.factor:.3g} times longer, the scheduler's limits alike"]
                if grain
                else []
            ),
        ],
        leaves_out=[
            "the host's CPUs, data loading, students who read each loss (a notebook may be four "
            "iterations ahead here), kernels that start, memory that differs between students",
        ],
        chart=_chart(runs),
        more={
            "cells": {
                policy: [round(cell.took_s, 4) for cell in run.cells]
                for policy, run in runs.items()
            }
        },
    )


def _check(options: argparse.Namespace) -> None:
    """Refuse what can never run."""
    one = options.model_bytes + options.kept_bytes + options.transient_bytes
    if one > options.gpu_memory:
        raise ConfigError(
            f"One notebook needs {one} bytes (--model-bytes, --kept-bytes and --transient-bytes), "
            f"and the device has {options.gpu_memory} (--gpu-memory)."
        )
    models = options.students * options.model_bytes
    if models + options.kept_bytes + options.transient_bytes > options.gpu_memory:
        raise ConfigError(
            f"{options.students} models need {models} bytes (--students times --model-bytes), "
            "which stay on the device; with what one iteration needs they do not fit into "
            f"{options.gpu_memory} (--gpu-memory)."
        )


def _students(options: argparse.Namespace) -> list[Job]:
    chance = chance_of("class", options.seed)
    memory = Memory(options.model_bytes, options.kept_bytes, options.transient_bytes)
    plain = Cell(
        options.iterations, options.iteration_ms / 1000, host_s=options.host_ms / 1000, told=False
    )
    count, over_s = options.students, max(1e-3, options.arrive_s)
    if options.arrivals == "uniform":
        arrivals = uniform(chance, count, over_s)
    elif options.arrivals == "poisson":
        arrivals = poisson(chance, count, count / over_s)
    else:
        arrivals = bursts(chance, count, _BURST, over_s * _BURST / count, 1.0)

    def cell() -> Cell:
        factor = chance.lognormvariate(-(options.spread**2) / 2, options.spread)
        iterations = max(1, round(options.iterations * factor))
        think_s = chance.expovariate(1.0) * options.think_s
        return replace(plain, iterations=iterations, think_s=think_s)

    return [
        Job(
            f"student {n}",
            f"user{n}",
            arrival,
            tuple(cell() for _ in range(options.cells)),
            memory,
            load=options.load,
        )
        for n, arrival in enumerate(arrivals, start=1)
    ]


def _grain(options: argparse.Namespace) -> Grain | None:
    iterations = options.students * options.cells * options.iterations
    if iterations <= _MOST_ITERATIONS:
        return None
    iteration_s = options.iteration_ms / 1000
    return Grain(iteration_s * iterations / _MOST_ITERATIONS, instead_of_s=iteration_s)


def _alone_s(job: Job, iterations: int, hardware: Hardware, grain: Grain | None) -> float:
    cell = replace(job.cells[0], think_s=0.0, iterations=iterations)
    one = replace(job, arrival_s=0.0, cells=(cell,))
    return run_jobs([one], hardware=hardware, grain=grain).cells[0].took_s


def _cells(policy: str, run: Run, alone_s: float) -> list[str | float]:
    took = [cell.took_s for cell in run.cells]
    row = [mean(took), *(percentile(took, each) for each in (50, 95, 100))]
    row += [mean(took) / alone_s, percentile(took, 95) / alone_s]
    return [policy, *row, 100 * (1 - alone_s / mean(took))]


def _whole(policy: str, run: Run) -> list[str | float | None]:
    ended_s = max(job.ended_s for job in run.jobs)
    held = max(each.committed for each in run.memory)
    return [
        policy,
        ended_s / 60,
        100 * run.busy_s / ended_s,
        contended_fairness(run.memory),
        *(nbytes / _UNITS["G"] for nbytes in (held, run.spilled_bytes, run.restored_bytes)),
        max(each.waiting for each in run.memory),
    ]


def _advice(options: argparse.Namespace, runs: dict[str, Run]) -> Sequence[str]:
    held = options.students * (options.model_bytes + options.kept_bytes) + options.transient_bytes
    if held <= options.gpu_memory:
        return ["all models and all that is kept fit on the device at once; nothing need be moved"]
    moved = max(run.spilled_bytes for run in runs.values()) / _UNITS["G"]
    return [
        f"models and what is kept need {held / _UNITS['G']:.1f} GiB at once, more than there is: "
        f"{moved:.1f} GiB were moved to the host meanwhile, and came back unseen"
    ]


def _chart(runs: dict[str, Run]) -> Chart:
    cells = [distribution(policy, [c.took_s for c in run.cells]) for policy, run in runs.items()]
    held, waiting = [], []
    for policy, run in runs.items():
        samples = run.memory
        points = [(each.now_s / 60, each.committed / _UNITS["G"]) for each in samples]
        held.append(Line(policy, points, steps=True))
        queue = [(each.now_s / 60, float(each.waiting)) for each in samples]
        waiting.append(Line(policy, queue, steps=True))
    return Chart(
        [
            ("Cells", "seconds", "part of the cells", cells),
            ("Memory held", "minutes", "GiB", held),
            ("Sessions that wait", "minutes", "sessions", waiting),
        ]
    )
