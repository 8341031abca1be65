"""A class at one assignment on one GPU: how long cells take, how fair it is, what memory holds.

Each student opens a notebook within the first minutes, thinks, and runs a cell that trains; again
and again. The same class runs under each policy that is asked for, once with every student alone,
to know what a cell takes when nobody is in the way, and with fewer and more students, to know how
many there can be. Submissions may be graded meanwhile, as work of the class batch.
"""

from __future__ import annotations

from argparse import ArgumentTypeError, Namespace
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from jgpu.sched.simulate.engine import contended_fairness
from jgpu.sched.simulate.results import mean, percentile
from jgpu.simulate.chart import Chart, Line, distribution
from jgpu.simulate.report import SimulationReport, Table, at_least, numbers
from jgpu.simulate.students import (
    GRADER,
    SEGMENTS,
    alone_s,
    check,
    class_of,
    fits,
    grain_of,
    of_students,
    run,
)
from jgpu.wire.sizes import parse_bytes

if TYPE_CHECKING:
    from argparse import ArgumentParser
    from collections.abc import Sequence

    from jgpu.sched.simulate.engine import MemorySample, SimulatedRun
    from jgpu.sched.simulate.results import SimulatedCell

__all__ = ["add_options", "simulate", "size"]

_GIB: Final = 1 << 30
_SAMPLES: Final = 300
_CELLS: Final = (
    "policy", "mean", "median", "p95", "worst", "mean x", "p95 x", "waited %", "turn", "turn p95",
)  # fmt: skip


def size(text: str) -> int:
    """Return the bytes of a size such as `16G`; for argparse."""
    try:
        return parse_bytes(text)
    except ValueError as error:
        raise ArgumentTypeError(str(error)) from None


def add_options(parser: ArgumentParser) -> None:
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
        ("--slowdown", above, 3.0, "times as long as alone that 19 of 20 cells may take"),
        ("--grading", at_least(0, int), 0, "submissions that run meanwhile, as batch, of one user"),
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
        "--sizes",
        type=numbers,
        default=(0.5, 1.5),
        metavar="FACTOR,...",
        help="further classes, so many times as large, under the first policy; '' for none "
        "(default: 0.5,1.5)",
    )
    parser.add_argument(
        "--policies", default="fair,fifo", metavar="NAME,...", help="(default: fair,fifo)"
    )


def simulate(options: Namespace) -> SimulationReport:
    """Run it."""
    check(options)
    jobs = class_of(options)
    members = jobs[: options.students]
    length_s = max(job.arrival_s + sum(c.think_s for c in job.cells) for job in members)
    length_s += sum(job.service_s for job in members)
    policies = options.policies.split(",")
    runs = {policy: run(jobs, policy, options, length_s / _SAMPLES) for policy in policies}
    grain, cell_s = grain_of(jobs, options), alone_s(jobs, options)
    sizes = _sizes(options, runs[policies[0]], cell_s)
    demand = sum(job.service_s for job in jobs) / max(
        max(job.ended_s for job in run.jobs) for run in runs.values()
    )
    return SimulationReport(
        title=f"A class of {options.students} on one GPU; a cell alone takes {cell_s:.3g} s",
        tables=[
            Table(
                "Cells: seconds from start to end, and times as long as alone; then seconds until "
                "one begins to compute",
                _CELLS,
                [_cells(policy, of_students(run, options), cell_s) for policy, run in runs.items()],
            ),
            Table(
                "The class: minutes until all are done, device busy, fairness, most memory in GiB",
                ["policy", "minutes", "busy %", "Jain", "held", "spilled", "restored", "waiting"],
                [_whole(policy, run) for policy, run in runs.items()],
            ),
            sizes,
        ],
        findings=[
            f"the class keeps the device busy for {demand * 100:.0f} % of its time",
            *_waits(policies[0], of_students(runs[policies[0]], options), cell_s),
            *_advice(options, runs),
            *_most(options, sizes),
            *_graded(options, runs),
        ],
        assumes=[
            "Jain's index is taken over what those students were served who had work at both ends "
            f"of a span of {length_s / _SAMPLES:.0f} s, averaged over the spans; 1 is all alike",
            "a notebook's memory is known to be needed before its first iteration runs; an "
            f"iteration is launched in {SEGMENTS} parts",
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
        chart=_chart(runs, options),
        more={
            "cells": {
                policy: [round(cell.took_s, 4) for cell in of_students(run, options)]
                for policy, run in runs.items()
            }
        },
    )


def _cells(policy: str, cells: Sequence[SimulatedCell], alone_s: float) -> list[str | float]:
    took, turns = [cell.took_s for cell in cells], [cell.waited_s for cell in cells]
    row = [mean(took), *(percentile(took, each) for each in (50, 95, 100))]
    row += [mean(took) / alone_s, percentile(took, 95) / alone_s]
    row += [100 * (1 - alone_s / mean(took)), percentile(turns, 50), percentile(turns, 95)]
    return [policy, *row]


def _whole(policy: str, run: SimulatedRun) -> list[str | float | None]:
    ended_s = max(job.ended_s for job in run.jobs)
    held = max(each.committed for each in run.memory)
    return [
        policy,
        ended_s / 60,
        100 * run.busy_s / ended_s,
        contended_fairness([_without_grading(sample) for sample in run.memory]),
        *(nbytes / _GIB for nbytes in (held, run.spilled_bytes, run.restored_bytes)),
        max(each.waiting for each in run.memory),
    ]


def _without_grading(sample: MemorySample) -> MemorySample:
    served_s = {user: seconds for user, seconds in sample.served_s.items() if user != GRADER}
    return replace(sample, served_s=served_s)


def _sizes(options: Namespace, asked: SimulatedRun, alone_s: float) -> Table:
    """The same class smaller and larger, under the first policy."""
    rows: list[list[str | float | int | None]] = []
    for factor in sorted({1.0, *options.sizes}):
        other = Namespace(**vars(options) | {"students": max(1, round(options.students * factor))})
        if not fits(other):
            rows.append([str(other.students), *[None] * 5, "models do not fit"])
            continue
        found = asked
        if other.students != options.students:
            found = run(class_of(other), options.policies.split(",")[0], other)
        cells = of_students(found, other)
        took, turns = [cell.took_s / alone_s for cell in cells], [cell.waited_s for cell in cells]
        busy = 100 * found.busy_s / max(job.ended_s for job in found.jobs)
        row = [percentile(took, 50), percentile(took, 95), percentile(turns, 95), busy]
        moved = found.spilled_bytes / _GIB
        says = "yes" if percentile(took, 95) <= options.slowdown else "slow"
        rows.append([str(other.students), *row, moved, says])
    title = f"How many students: {options.policies.split(',')[0]}"
    columns = ["students", "median x", "p95 x", "turn p95", "busy %", "spilled", "fits"]
    return Table(title, columns, rows)


def _waits(policy: str, cells: Sequence[SimulatedCell], alone_s: float) -> list[str]:
    took, turns = [cell.took_s for cell in cells], [cell.waited_s for cell in cells]
    return [
        f"under {policy}, half of the cells end within {percentile(took, 50):.3g} s and 19 of 20 "
        f"within {percentile(took, 95):.3g} s, where one alone takes {alone_s:.3g} s; 19 of 20 "
        f"begin to compute within {percentile(turns, 95):.2g} s"
    ]


def _most(options: Namespace, sizes: Table) -> list[str]:
    good = [row[0] for row in sizes.rows if row[-1] == "yes"]
    if not good:
        return [
            f"in none of these classes 19 of 20 cells end within {options.slowdown:g} times as "
            "long as alone: fewer students, shorter cells or a faster device"
        ]
    return [
        f"{good[-1]} students are the most of these with whom 19 of 20 cells end within "
        f"{options.slowdown:g} times as long as alone"
    ]


def _graded(options: Namespace, runs: dict[str, SimulatedRun]) -> list[str]:
    return [
        f"{options.grading} submissions are graded after "
        f"{max(job.ended_s for job in run.jobs if job.user == GRADER) / 60:.3g} min under {policy}"
        for policy, run in runs.items()
        if options.grading
    ]


def _advice(options: Namespace, runs: dict[str, SimulatedRun]) -> Sequence[str]:
    held = options.students * (options.model_bytes + options.kept_bytes) + options.transient_bytes
    if held <= options.gpu_memory:
        return ["all models and all that is kept fit on the device at once; nothing need be moved"]
    moved = max(run.spilled_bytes for run in runs.values()) / _GIB
    return [
        f"models and what is kept need {held / _GIB:.1f} GiB at once, more than there is: "
        f"{moved:.1f} GiB were moved to the host meanwhile, and came back unseen"
    ]


def _chart(runs: dict[str, SimulatedRun], options: Namespace) -> Chart:
    cells = [
        distribution(policy, [cell.took_s for cell in of_students(run, options)])
        for policy, run in runs.items()
    ]
    held, waiting = [], []
    for policy, found in runs.items():
        samples = found.memory
        points = [(each.now_s / 60, each.committed / _GIB) for each in samples]
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
