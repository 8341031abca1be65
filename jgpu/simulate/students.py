"""Who is in a simulated class, and how it is run: options in, jobs and their times out."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from jgpu.errors import ConfigError
from jgpu.sched.priorities import Priority
from jgpu.sched.simulate.arrivals import bursts, poisson, uniform
from jgpu.sched.simulate.device import Hardware
from jgpu.sched.simulate.engine import Grain, run_jobs
from jgpu.sched.simulate.jobs import Cell, JobMemory, SimulatedJob
from jgpu.sched.simulate.loop import LoopPace
from jgpu.simulate.report import chance_of

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from jgpu.sched.simulate.engine import SimulatedRun
    from jgpu.sched.simulate.results import SimulatedCell

__all__ = [
    "GRADER",
    "SEGMENTS",
    "alone_s",
    "check",
    "class_of",
    "fits",
    "grain_of",
    "of_students",
    "run",
]

#: the user whose work grading is
GRADER: Final = "grader"
#: segments that an iteration is cut into
SEGMENTS: Final = 4
#: students that begin together where they come in bursts
_BURST: Final = 8
#: iterations simulated at most; beyond that they are made longer, and the limits with them
_MOST_ITERATIONS: Final = 40_000


def check(options: argparse.Namespace) -> None:
    """Refuse what can never run."""
    one = options.model_bytes + options.kept_bytes + options.transient_bytes
    if one > options.gpu_memory:
        raise ConfigError(
            f"One notebook needs {one} bytes (--model-bytes, --kept-bytes and --transient-bytes), "
            f"and the device has {options.gpu_memory} (--gpu-memory)."
        )
    if not fits(options):
        raise ConfigError(
            f"{options.students} models need {options.students * options.model_bytes} bytes "
            "(--students times --model-bytes), which stay on the device; with what one iteration "
            f"needs they do not fit into {options.gpu_memory} (--gpu-memory)."
        )


def fits(options: argparse.Namespace) -> bool:
    """Whether all models and one iteration fit on the device."""
    models = (options.students + bool(options.grading)) * options.model_bytes
    return bool(models + options.kept_bytes + options.transient_bytes <= options.gpu_memory)


def class_of(options: argparse.Namespace) -> list[SimulatedJob]:
    """The students, the first `options.students` of them, and whoever grades."""
    chance = chance_of("class", options.seed)
    count, over_s = options.students, max(1e-3, options.arrive_s)
    if options.arrivals == "uniform":
        arrivals = uniform(chance, count, over_s)
    elif options.arrivals == "poisson":
        arrivals = poisson(chance, count, count / over_s)
    else:
        arrivals = bursts(chance, count, _BURST, over_s * _BURST / count, 1.0)
    plain, memory = _plain(options), _memory(options)

    def cell() -> Cell:
        factor = chance.lognormvariate(-(options.spread**2) / 2, options.spread)
        iterations = max(1, round(options.iterations * factor))
        think_s = chance.expovariate(1.0) * options.think_s
        return replace(plain, iterations=iterations, think_s=think_s)

    jobs = [
        SimulatedJob(
            f"student {n}",
            f"user{n}",
            arrival,
            tuple(cell() for _ in range(options.cells)),
            memory,
            load=options.load,
        )
        for n, arrival in enumerate(arrivals, start=1)
    ]
    return jobs + _grading(options)


def _plain(options: argparse.Namespace) -> Cell:
    iteration_s, host_s = options.iteration_ms / 1000, options.host_ms / 1000
    return Cell(options.iterations, iteration_s, host_s=host_s, told=False)


def _memory(options: argparse.Namespace) -> JobMemory:
    return JobMemory(options.model_bytes, options.kept_bytes, options.transient_bytes)


def _grading(options: argparse.Namespace) -> list[SimulatedJob]:
    """Submissions, all cells of each and one after the other, as batch work."""
    if not options.grading:
        return []
    cells = (_plain(options),) * (options.cells * options.grading)
    job = SimulatedJob("grading", GRADER, 0.0, cells, _memory(options), options.load)
    return [replace(job, priority=int(Priority.BATCH))]


def run(
    jobs: Sequence[SimulatedJob], policy: str, options: argparse.Namespace, sample_s: float = 0.0
) -> SimulatedRun:
    """A class under a policy, to the end of all that it does."""
    grain = grain_of(jobs, options)
    return run_jobs(
        jobs,
        policy,
        hardware=_hardware(options, grain),
        grain=grain,
        pace=LoopPace(segment_s=options.iteration_ms / 1000 / SEGMENTS),
        sample_s=sample_s,
    )


def of_students(found: SimulatedRun, options: argparse.Namespace) -> list[SimulatedCell]:
    """The students' cells, without those of grading."""
    return [cell for cell in found.cells if cell.session <= options.students]


def alone_s(jobs: Sequence[SimulatedJob], options: argparse.Namespace) -> float:
    """How long a plain cell takes a student who has the device for themselves."""
    one = replace(jobs[0], arrival_s=0.0, cells=(_plain(options),))
    grain = grain_of(jobs, options)
    (cell,) = run_jobs([one], hardware=_hardware(options, grain), grain=grain).cells
    return cell.took_s


def grain_of(jobs: Sequence[SimulatedJob], options: argparse.Namespace) -> Grain | None:
    """Longer iterations, where there would be too many."""
    iterations = options.iterations * sum(len(job.cells) for job in jobs)
    if iterations <= _MOST_ITERATIONS:
        return None
    iteration_s = options.iteration_ms / 1000
    return Grain(iteration_s * iterations / _MOST_ITERATIONS, instead_of_s=iteration_s)


def _hardware(options: argparse.Namespace, grain: Grain | None) -> Hardware:
    return Hardware(
        lanes=options.lanes,
        capacity=options.gpu_memory,
        link_bytes_per_s=max(1, options.link_bytes),
        look_s=0.25 * (grain.factor if grain else 1.0),
    )
