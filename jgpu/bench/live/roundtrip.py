"""Measure the shortest wait: the number that `a.sum().item()` is, of a small tensor.

On an idle device, on an idle host and beside a native process for each core; and beside three users
who train, against the bound that their turns give.
"""

import argparse
import os
import statistics
from collections.abc import Sequence
from typing import Any, Final

from jgpu.bench.broker import Bench
from jgpu.bench.rig import goals
from jgpu.bench.rig.goals import at_most, percentile, plain
from jgpu.bench.rig.notebooks import NATIVE, Group, NotebookProcess, batch_of
from jgpu.kernelprovider.environment import outer_environment
from jgpu.sched import Limits

__all__ = ["add_options", "main"]

#: most microseconds in the median, where each end may have a core and where others have them all
_FREE_US, _TAKEN_US = 100.0, 120.0
_OTHERS: Final = 3
_PERSON: Final = "person"
_MICRO: Final = 1e6


def add_options(parser: argparse.ArgumentParser) -> None:
    """What can be said about it on the command line."""
    goals.add_common(parser, seconds=4.0, repeat=3, target_ms=12.0)


def main(options: argparse.Namespace) -> int:
    """Measure, print, write."""
    found = _measure(options)
    bound_s, beside = found["bound_s"], found["beside"]
    figures = [
        at_most("idle host: median", _us(found["idle"], 50), _FREE_US, "us"),
        plain("idle host: p99", _us(found["idle"], 99), "us"),
        at_most("all cores busy: median", _us(found["taken"], 50), _TAKEN_US, "us"),
        plain("all cores busy: p99", _us(found["taken"], 99), "us"),
        plain(f"beside {_OTHERS} users: median", _us(beside, 50), "us"),
        plain(f"beside {_OTHERS} users: p99", _us(beside, 99), "us"),
        plain("bound of their turns", [_MICRO * bound_s], "us"),
        at_most(
            f"beside {_OTHERS} users: p99 / bound",
            [percentile(each, 99) / bound_s for each in beside],
            1.0,
        ),
    ]
    counts = {name: [*map(len, found[name])] for name in ("idle", "taken", "beside")}
    more = {"batch": found["batch"], "waits": counts}
    goals.show("A round trip: a.sum().item()", figures, options, notes=_NOTES, more=more)
    return 0


_NOTES: Final = (
    "all cores busy: a native process trains for each core, with one thread.",
    "The bound: an iteration of each of the others, a quantum, and the round trip alone.",
)


def _us(found: Sequence[Sequence[float]], percent: float) -> list[float]:
    return [_MICRO * percentile(each, percent) for each in found]


def _measure(options: argparse.Namespace) -> dict[str, Any]:
    """Seconds of round trips, stretch by stretch, and the bound beside others."""
    outer = outer_environment(os.environ)
    batch = batch_of("cnn", options.target_ms, outer)
    model = {"model": "cnn", "batch": batch, "threads": 1}
    bench = Bench(device=options.device, threads=1, lanes=1)
    with bench, Group() as group, Group() as natives:
        person = group.start(_PERSON, bench.seat(_PERSON, _PERSON), device="cuda", **model)
        for number in range(_OTHERS):
            name = f"user{number + 1}"
            group.start(name, bench.seat(name, name), device="cuda", **model)
        for _ in os.sched_getaffinity(0):
            natives.start(NATIVE, outer, device="cpu", **model)
        group.wait_until_ready()
        natives.wait_until_ready()
        idle = [_waits(person, options.seconds) for _ in range(options.repeat)]
        taken, beside = (
            [_beside(person, those, options.seconds) for _ in range(options.repeat)]
            for those in (natives.members, group.members[1:])
        )
        rows = [row for row in bench.status().sessions if row.user != _PERSON]
    iterations_s = [row.device_seconds / row.iterations for row in rows]
    bound_s = sum(iterations_s) + Limits().quantum_of(statistics.median(iterations_s))
    alone_s = statistics.median(percentile(each, 50) for each in idle)
    return {
        "batch": batch, "idle": idle, "taken": taken, "beside": beside, "bound_s": bound_s + alone_s
    }  # fmt: skip


def _waits(person: NotebookProcess, seconds: float, pause_s: float = 0.0) -> list[float]:
    person.tell("waits", seconds=seconds, pause_s=pause_s)
    found: list[float] = person.answer()["waits"]
    return found


def _beside(
    person: NotebookProcess, others: Sequence[NotebookProcess], seconds: float
) -> list[float]:
    for other in others:
        other.tell("train", seconds=seconds + 2.0)
    found = _waits(person, seconds, pause_s=1.0)
    for other in others:
        other.answer()
    return found
