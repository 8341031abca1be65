"""Measure throughput: eight notebooks through one broker, and the same as native processes.

All processes are started and warm before anything is measured; then stretches alternate: through
the broker (as it comes: two lanes, the cores shared between them), native side by side with one
thread each, native with torch's default threads, and native one after the other. Iterations count
that were over, from the first begin to the last end.
"""

import argparse
import os
from collections.abc import Callable, Sequence
from typing import Any, Final

from jgpu.bench.broker import Bench
from jgpu.bench.rig import goals
from jgpu.bench.rig.goals import Figure, at_least, plain
from jgpu.bench.rig.notebooks import NATIVE, Group, NotebookProcess, batch_of, together
from jgpu.kernelprovider.environment import outer_environment

__all__ = ["add_options", "main", "rate_of"]

_SHARED, _ONE, _DEFAULT, _QUEUE = "jgpu", "one thread", "default threads", "one after the other"
_SHARED_QUEUE: Final = "jgpu, one after the other"


def add_options(parser: argparse.ArgumentParser) -> None:
    """What can be said about it on the command line."""
    goals.add_common(parser, seconds=10.0, repeat=5, target_ms=12.0)
    parser.add_argument("--notebooks", type=int, default=8, help="how many (default: 8)")
    parser.add_argument("--lanes", type=int, default=2, help="of the broker (default: 2)")


def main(options: argparse.Namespace) -> int:
    """Measure, print, write."""
    batch = batch_of("cnn", options.target_ms, outer_environment(os.environ))
    rates, threads = _measure(options, batch)
    figures = [
        _against(rates, _ONE, 0.97),
        _against(rates, _DEFAULT, 1.00),
        _against(rates, _QUEUE, 0.98),
        plain(
            "jgpu at once / one after the other",
            [all_ / one for all_, one in zip(rates[_SHARED], rates[_SHARED_QUEUE], strict=True)],
        ),
        *(plain(name, found, "iterations/s") for name, found in rates.items()),
    ]
    notes = [
        f"torch's default is {threads} thread(s) here, for the processes that are left to it and "
        "for those one after the other.",
    ]
    more = {"batch": batch, "default_threads": threads, "iterations_per_s": rates}
    title = f"{options.notebooks} notebooks through jgpu and natively"
    goals.show(title, figures, options, notes=notes, more=more)
    return 0


def _against(rates: dict[str, list[float]], name: str, goal: float) -> Figure:
    pairs = zip(rates[_SHARED], rates[name], strict=True)
    return at_least(f"jgpu / native, {name}", [ours / theirs for ours, theirs in pairs], goal)


_ON_CPU: Final = {"device": "cpu", "model": "cnn"}


def _measure(options: argparse.Namespace, batch: int) -> tuple[dict[str, list[float]], int]:
    """Iterations per second of each kind by repetition, and torch's default threads."""
    bench = Bench(device=options.device, threads=0, lanes=options.lanes)
    seconds, count = options.seconds, options.notebooks
    outer = outer_environment(os.environ)
    with bench, Group() as shared, Group() as single, Group() as default:
        for number in range(count):
            name = f"user{number + 1}"
            shared.start(
                name, bench.seat(name, name), model="cnn", batch=batch, device="cuda", threads=1
            )
            single.start(NATIVE, outer, batch=batch, threads=1, **_ON_CPU)
            default.start(NATIVE, outer, batch=batch, threads=0, **_ON_CPU)
        shared.wait_until_ready()
        single.wait_until_ready()
        threads = default.wait_until_ready()[0]["threads"]
        kinds: dict[str, Callable[[], float]] = {
            _SHARED: lambda: rate_of(together(shared.members, "train", seconds=seconds)),
            _ONE: lambda: rate_of(together(single.members, "train", seconds=seconds)),
            _DEFAULT: lambda: rate_of(together(default.members, "train", seconds=seconds)),
            _QUEUE: lambda: _queue(default.members, seconds / count),
            _SHARED_QUEUE: lambda: _queue(shared.members, seconds / count),
        }
        rates: dict[str, list[float]] = {name: [] for name in kinds}
        for turn in range(options.repeat):
            for name in [*kinds][:: 1 if turn % 2 else -1]:
                rates[name].append(kinds[name]())
    return rates, threads


def rate_of(answers: Sequence[dict[str, Any]]) -> float:
    """Iterations per second of processes that trained at once."""
    begin = min(each["begin"] for each in answers)
    end = max(each["end"] for each in answers)
    return float(sum(each["iterations"] for each in answers) / (end - begin))


def _queue(members: Sequence[NotebookProcess], seconds: float) -> float:
    """Iterations per second of processes that each have the machine to themselves in turn."""
    iterations, passed_s = 0, 0.0
    for member in members:
        member.tell("train", seconds=seconds)
        found = member.answer()
        iterations += found["iterations"]
        passed_s += found["end"] - found["begin"]
    return iterations / passed_s
