"""Measure the time to the first 100 iterations of many jobs that arrive together.

Under `fair` each job soon shows whether it is worth going on with; under `fifo` most wait for the
jobs before them. Gandiva (Xiao et al., OSDI 2018, section 6.2) found the mean time to the first
100 iterations 77 % lower with time-slicing than with a queue.
"""

import argparse
import os
import statistics
from typing import Any, Final

from jgpu.bench.broker import Bench
from jgpu.bench.rig import goals
from jgpu.bench.rig.goals import at_least, plain
from jgpu.bench.rig.notebooks import Group, batch_of, together
from jgpu.kernelprovider.environment import outer_environment

__all__ = ["add_options", "main"]

#: Gandiva's figure, as a part of the time under a queue
_PUBLISHED: Final = 0.77


def add_options(parser: argparse.ArgumentParser) -> None:
    """What can be said about it on the command line."""
    goals.add_common(parser, seconds=0.0, repeat=1, target_ms=4.0)
    parser.add_argument("--jobs", type=int, default=20, help="how many arrive (default: 20)")
    parser.add_argument("--iterations", type=int, default=1000, help="of each (default: 1000)")
    parser.add_argument("--first", type=int, default=100, help="those waited for (default: 100)")


def main(options: argparse.Namespace) -> int:
    """Measure, print, write."""
    batch = batch_of("cnn", options.target_ms, outer_environment(os.environ))
    found = {policy: _measure(options, batch, policy) for policy in ("fair", "fifo")}
    means = {
        policy: [statistics.fmean(each["first_s"]) for each in runs]
        for policy, runs in found.items()
    }
    saved = [1 - fair / fifo for fair, fifo in zip(means["fair"], means["fifo"], strict=True)]
    last = [
        max(fair["over_s"]) / max(fifo["over_s"])
        for fair, fifo in zip(found["fair"], found["fifo"], strict=True)
    ]
    figures = [
        at_least(
            f"mean time to {options.first} iterations: saved by fair",
            [100 * each for each in saved],
            100 * _PUBLISHED,
            "%",
        ),
        plain("all jobs over: fair / fifo", last),
        *(plain(f"{policy}: mean", each, "s") for policy, each in means.items()),
    ]
    title = f"{options.jobs} jobs of {options.iterations} iterations that arrive together"
    goals.show(title, figures, options, more={"batch": batch, **found})
    return 0


def _measure(options: argparse.Namespace, batch: int, policy: str) -> list[dict[str, list[float]]]:
    """By repetition, seconds from the arrival to each job's first iterations and to its end."""
    bench = Bench(device=options.device, threads=1, lanes=1, settings={"policy": policy})
    with bench, Group() as group:
        for number in range(options.jobs):
            name = f"user{number + 1}"
            group.start(
                name, bench.seat(name, name), model="cnn", batch=batch, device="cuda", threads=1
            )
        group.wait_until_ready()
        found = []
        for _ in range(options.repeat):
            answers = together(
                group.members, "train", iterations=options.iterations, marks=[options.first]
            )
            begin = min(each["begin"] for each in answers)
            found.append(
                {
                    "first_s": [_first(each, options.first) - begin for each in answers],
                    "over_s": [each["end"] - begin for each in answers],
                }
            )
    return found


def _first(answer: dict[str, Any], count: int) -> float:
    return float(answer["marks"][str(count)])
