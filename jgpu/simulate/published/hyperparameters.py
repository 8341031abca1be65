"""300 trials of one model on one GPU (Salus, MLSys 2020, section 5.2), small and large.

Trials one after the other pay for their start-up and for the host's part of each iteration while
the device idles; several at a time fill those gaps. Salus' makespans are 2.38 times (superres_128)
and 1.07 times (resnet50_50) shorter than one after the other.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from jgpu.sched.simulate.device import Hardware
from jgpu.sched.simulate.engine import Grain, run_jobs
from jgpu.sched.simulate.jobs import Cell, JobMemory, SimulatedJob
from jgpu.simulate.report import SimulationReport, Table, at_least, published

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

__all__ = ["add_options", "simulate"]

_ITERATIONS: Final = 500
_MEGA: Final = 10**6
_CAPACITY: Final = 16 * 10**9


@dataclass(frozen=True, slots=True)
class _Model:
    """One of the two models; seconds."""

    name: str
    #: of an iteration alone, device and host together
    iteration_s: float
    startup_s: float
    #: the part of an iteration for which the device is busy
    utilisation: float
    memory: JobMemory
    #: makespans in minutes read off Salus' Figure 11, one after the other and under Salus
    fifo_min: float
    salus_min: float
    #: the gain that Salus states
    salus_gain: float


def add_options(parser: argparse.ArgumentParser) -> None:
    """What can be said about it on the command line."""
    parser.add_argument("--trials", type=at_least(1, int), default=300, help="(default: 300)")
    parser.add_argument(
        "--workers",
        type=at_least(1, int),
        default=8,
        help="trials at a time; each needs a core of the host (default: 8)",
    )
    parser.add_argument("--policy", default="fair", help="(default: fair)")
    parser.add_argument(
        "--host-factor",
        type=at_least(0.1),
        default=1.0,
        help="times that the host's part of an iteration takes as long when shared (default: 1)",
    )


def simulate(options: argparse.Namespace) -> SimulationReport:
    """Run it."""
    models = _models()
    rows, findings = [], []
    for model in models:
        one = _makespan_s(model, "fifo", 1, options.trials, 1.0)
        many = _makespan_s(
            model, options.policy, options.workers, options.trials, options.host_factor
        )
        without = options.trials * _ITERATIONS * model.iteration_s
        row = [model.name, one / 60, many / 60, one / many, model.salus_gain, without / many]
        theirs = model.fifo_min * options.trials / 300
        rows.append([*row, model.fifo_min, model.salus_min, theirs / (many / 60)])
        verdict = "beats" if one / many > model.salus_gain else "falls short of"
        findings.append(
            f"{model.name}: {one / many:.2f} times {verdict} Salus' {model.salus_gain:g}; the "
            f"device is busy for {model.utilisation * 100:.0f} % of a trial's iterations alone"
        )
    columns = ["model", "fifo min", "ours min", "ours x", "Salus x", "x, no start-up"]
    columns += ["Salus' fifo min", "Salus min", "x, Salus' fifo"]
    return SimulationReport(
        title=f"{options.trials} trials of {_ITERATIONS} iterations on one GPU: makespan",
        tables=[Table(f"{options.workers} trials at a time, {options.policy}", columns, rows)],
        findings=findings,
        assumes=_assumptions(models, options),
        leaves_out=[
            "the host's CPUs, beyond one core for each of the trials at a time: small models are "
            "bound by them (an iteration of superres took 1.83 times as long under Salus; "
            "--host-factor 1.83 shows what that would mean)",
            "lanes in parallel (there is one), data loading, the trials that a search would stop",
        ],
    )


def _models() -> tuple[_Model, _Model]:
    gandiva = {row.text("model"): row for row in published("gandiva_packing.csv", "model")}
    zoo = {
        f"{row.text('model')}_{row.text('batch')}": row
        for row in published("salus_workloads.csv", "model", "batch", "peak_memory_mb")
    }
    resnet, quick = zoo["resnet50_50"], zoo["alexnet_25"]
    small_startup_s = quick.number("startup_s")
    small = _Model(
        name="superres_128",
        iteration_s=(480 * 60 / 300 - small_startup_s) / _ITERATIONS,
        startup_s=small_startup_s,
        utilisation=gandiva["SuperResolution"].number("gpu_util_percent") / 100,
        memory=JobMemory(resident=100 * _MEGA, transient=900 * _MEGA),
        fifo_min=480,
        salus_min=200,
        salus_gain=2.38,
    )
    peak = round(resnet.number("peak_memory_mb") * _MEGA)
    large = _Model(
        name="resnet50_50",
        iteration_s=resnet.number("iteration_ms") / 1000,
        startup_s=resnet.number("startup_s"),
        utilisation=gandiva["ResNet-50"].number("gpu_util_percent") / 100,
        memory=JobMemory(resident=300 * _MEGA, transient=peak - 300 * _MEGA),
        fifo_min=610,
        salus_min=570,
        salus_gain=1.07,
    )
    return small, large


def _assumptions(models: Sequence[_Model], options: argparse.Namespace) -> list[str]:
    small, large = models
    return [
        f"superres_128: no iteration time was published; {small.iteration_s * 1000:.0f} ms follow "
        "from Figure 11 (480 min for 300 trials one after the other, read off by eye) less the "
        f"shortest published start-up, {small.startup_s:g} s (alexnet_25)",
        f"resnet50_50: {large.iteration_s * 1000:g} ms an iteration, {large.startup_s:g} s of "
        "start-up (Salus' repository); one after the other that is more than the 610 min of the "
        "figure, so the last column compares with the figure itself",
        f"the device is busy for {small.utilisation * 100:g} % and {large.utilisation * 100:g} % "
        "of an iteration: utilisations of the two in Gandiva's Table 1 (P40)",
        f"{options.workers} trials at a time, each waiting for its loss in every iteration; a "
        "trial's start-up does not use the device",
        f"memory: {_CAPACITY / 1e9:g} GB; models of 0.1 and 0.3 GB stay, the rest of the published "
        "peak (1.0 and 4.0 GB) is needed inside an iteration only",
    ]


def _makespan_s(model: _Model, policy: str, workers: int, trials: int, host_factor: float) -> float:
    device_s = model.iteration_s * model.utilisation
    cell = Cell(
        _ITERATIONS,
        device_s,
        think_s=model.startup_s,
        host_s=(model.iteration_s - device_s) * host_factor,
        ahead=1,
    )
    jobs = [
        SimulatedJob(
            model.name, f"worker{n}", 0.0, (cell,) * len(range(n, trials, workers)), model.memory
        )
        for n in range(min(workers, trials))
    ]
    grain = Grain(10 * device_s, instead_of_s=device_s)
    hardware = Hardware(capacity=_CAPACITY)
    return max(job.ended_s for job in run_jobs(jobs, policy, hardware=hardware, grain=grain).jobs)
