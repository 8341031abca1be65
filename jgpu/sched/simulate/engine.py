"""Runs jobs on one simulated device under a policy: the live core under a virtual clock.

A long trace need not be run in iterations of milliseconds: `Grain` makes them longer and the core's
limits with them, so that turns, bounds and trials keep their proportion to an iteration. How much
the result owes to that is a question for two runs with different grains.

The rule: the same jobs, policy and grain give the same result, always.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from itertools import pairwise
from typing import TYPE_CHECKING

from jgpu.sched.core import Core
from jgpu.sched.limits import Limits
from jgpu.sched.simulate.clock import Clock
from jgpu.sched.simulate.device import Hardware, SimulatedDevice
from jgpu.sched.simulate.loop import LoopPace, TrainingLoop
from jgpu.sched.simulate.results import Log, jain, mean

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jgpu.sched.simulate.jobs import SimulatedJob
    from jgpu.sched.simulate.results import JobTimes, SimulatedCell

__all__ = [
    "Grain",
    "MemorySample",
    "SimulatedRun",
    "contended_fairness",
    "run_jobs",
    "scaled_limits",
]


@dataclass(frozen=True, slots=True)
class Grain:
    """Iterations of about `iteration_s` in place of those of `instead_of_s`."""

    iteration_s: float
    instead_of_s: float = 0.2

    @property
    def factor(self) -> float:
        """How many times longer."""
        return self.iteration_s / self.instead_of_s


@dataclass(frozen=True, slots=True)
class MemorySample:
    """The device's memory at one moment; bytes."""

    now_s: float
    committed: int
    resident: int
    kept: int
    waiting: int
    #: device seconds charged so far to each user who has work
    served_s: dict[str, float]


@dataclass(frozen=True, slots=True)
class SimulatedRun:
    """What came of it."""

    policy: str
    jobs: tuple[JobTimes, ...]
    cells: tuple[SimulatedCell, ...]
    busy_s: float
    #: device time charged to each user
    charged_s: dict[str, float]
    memory: tuple[MemorySample, ...]
    spilled_bytes: int
    restored_bytes: int
    #: events that the core was told
    events: int


def contended_fairness(samples: Sequence[MemorySample]) -> float | None:
    """Return Jain's index of what users were served while they competed.

    It is taken between two samples over the users who have work at both, where there are at least
    two, and averaged; None where nobody ever competed.
    """
    found = []
    for first, second in pairwise(samples):
        both = first.served_s.keys() & second.served_s.keys()
        served = [second.served_s[user] - first.served_s[user] for user in both]
        if len(served) > 1:
            found.append(jain(served))
    return mean(found) if found else None


def scaled_limits(limits: Limits, factor: float) -> Limits:
    """Return limits whose times are so many times longer."""
    times = {each.name: getattr(limits, each.name) for each in fields(limits)}
    return replace(limits, **{k: v * factor for k, v in times.items() if k.endswith("_s")})


def run_jobs(
    jobs: Sequence[SimulatedJob],
    policy: str = "fair",
    *,
    hardware: Hardware | None = None,
    grain: Grain | None = None,
    limits: Limits | None = None,
    pace: LoopPace | None = None,
    sample_s: float = 0.0,
    until_s: float = float("inf"),
) -> SimulatedRun:
    """Run jobs to their end, or until a moment; memory is sampled every `sample_s`, 0 for never."""
    limits, pace, hardware = limits or Limits(), pace or LoopPace(), hardware or Hardware()
    if grain is not None:
        limits = scaled_limits(limits, grain.factor)
        pace = LoopPace(segment_s=grain.iteration_s, idle_s=pace.idle_s * grain.factor)
        jobs = [job.coarsened(grain.iteration_s) for job in jobs]
    clock, log = Clock(), Log()
    device = SimulatedDevice(clock, Core(policy, limits), hardware)
    numbered = list(enumerate(jobs, start=1))
    loops = [TrainingLoop(clock, device, session, job, log, pace) for session, job in numbered]
    samples: list[MemorySample] = []
    if sample_s:
        clock.at(0.0, _sample, device, loops, sample_s, samples)
    clock.run(until_s)
    return SimulatedRun(
        policy=policy,
        jobs=log.jobs(numbered),
        cells=tuple(log.cells),
        busy_s=device.busy_s,
        charged_s={user.name: user.device_seconds for user in device.core.snapshot().users},
        memory=tuple(samples),
        spilled_bytes=device.spilled_bytes,
        restored_bytes=device.restored_bytes,
        events=device.events,
    )


def _sample(
    device: SimulatedDevice,
    loops: Sequence[TrainingLoop],
    every_s: float,
    samples: list[MemorySample],
) -> None:
    """Take down what memory holds, again and again while anybody is there."""
    clock, seen = device.clock, device.core.snapshot()
    at_work = {each.user for each in seen.sessions if each.state != "idle"}
    samples.append(
        MemorySample(
            now_s=clock.now,
            committed=seen.committed,
            resident=sum(each.resident for each in seen.sessions),
            kept=sum(each.kept for each in seen.sessions),
            waiting=sum(each.state == "waiting" for each in seen.sessions),
            served_s={
                user.name: user.device_seconds for user in seen.users if user.name in at_work
            },
        )
    )
    if not all(loop.over for loop in loops):
        clock.after(every_s, _sample, device, loops, every_s, samples)
