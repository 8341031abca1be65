"""Measure waiting: sessions that together want three times the memory there is, all at work.

Nobody fails: each waits until there is room, and has its turn.
"""

import argparse
import statistics
from typing import Any, Final

from jgpu.bench.broker import Bench
from jgpu.bench.live.memory import weights_bytes
from jgpu.bench.rig import goals
from jgpu.bench.rig.goals import at_least, plain
from jgpu.bench.rig.notebooks import Group
from jgpu.errors import WorkFailed

__all__ = ["add_options", "main"]

_TIMES: Final = 3
#: bytes that an iteration needs besides, and what rounds up
_ACTIVATIONS: Final = 8 << 20


def add_options(parser: argparse.ArgumentParser) -> None:
    """What can be said about it on the command line."""
    goals.add_common(parser, seconds=0.0, repeat=1, target_ms=0.0)
    parser.add_argument("--sessions", type=int, default=9, help="how many (default: 9)")
    parser.add_argument("--width", type=int, default=512, help="of each model (default: 512)")
    parser.add_argument(
        "--kept-mb", type=int, default=128, help="MiB that each keeps (default: 128)"
    )
    parser.add_argument("--iterations", type=int, default=200, help="of each, twice (default: 200)")


def main(options: argparse.Namespace) -> int:
    """Measure, print, write."""
    each = weights_bytes(options.width) + (options.kept_mb << 20) + _ACTIVATIONS
    capacity = options.sessions * each // _TIMES
    answers, failed = _measure(options, capacity)
    figures = [
        at_least("sessions that finished", [len(answers)], options.sessions),
        at_least(
            "sessions whose tensors are equal",
            [sum(found["equal"] for found in answers)],
            options.sessions,
        ),
    ]
    if answers:
        begin = min(found["begin"] for found in answers)
        over = [found["end"] - begin for found in answers]
        figures.append(plain("the last is over / the mean", [max(over) / statistics.fmean(over)]))
        figures.append(plain("over after", over, "s"))
    title = f"{options.sessions} sessions that want {_TIMES} times the memory"
    more = {"capacity": capacity, "answers": answers}
    goals.show(title, figures, options, notes=failed, more=more)
    return 0


def _measure(options: argparse.Namespace, capacity: int) -> tuple[list[dict[str, Any]], list[str]]:
    """What each that finished found, and what others failed with."""
    bench = Bench(device=options.device, threads=1, lanes=2, settings={"memory": capacity})
    with bench, Group("holder.py") as group:
        for number in range(options.sessions):
            name = f"user{number + 1}"
            group.start(
                name, bench.seat(name, name),
                device="cuda", threads=1, width=options.width, kept_mb=options.kept_mb, seed=number,
            )  # fmt: skip
        group.wait_until_ready()
        for command in (
            {"do": "make"},
            {"do": "live", "rounds": 2, "iterations": options.iterations, "rest_s": 0.0},
        ):
            answers, failed = [], []
            for member in group.members:
                if member.alive:
                    member.tell(**command)
            for member in group.members:
                try:
                    answers.append(member.answer())
                except WorkFailed as error:
                    failed.append(str(error))
    return answers, failed
