"""Measure how long a short cell takes while many notebooks train.

A cell of ten iterations, again and again after a pause, alone and beside eight notebooks of four
users: under `fair`, and under `priority` with the cell's session of the class interactive.
"""

import argparse
import os
import statistics
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

from jgpu.bench.broker import Bench
from jgpu.bench.rig import goals
from jgpu.bench.rig.goals import Figure, at_most, percentile, plain
from jgpu.bench.rig.lanes import pieces_of
from jgpu.bench.rig.notebooks import Group, NotebookProcess, batch_of
from jgpu.kernelprovider.environment import outer_environment
from jgpu.sched import Limits

__all__ = ["add_options", "main"]

_PERSON: Final = "user5"
_OTHERS: Final = 4
_ITERATIONS: Final = 10
#: longer than the scheduler remembers that somebody was there a moment ago
_PAUSE_S: Final = 0.25


def add_options(parser: argparse.ArgumentParser) -> None:
    """What can be said about it on the command line."""
    goals.add_common(parser, seconds=12.0, repeat=3, target_ms=12.0)
    parser.add_argument(
        "--notebooks", type=int, default=8, help="how many train meanwhile (default: 8)"
    )


def main(options: argparse.Namespace) -> int:
    """Measure, print, write."""
    batch = batch_of("cnn", options.target_ms, outer_environment(os.environ))
    fair = _measure(options, batch, "fair")
    first = _measure(options, batch, "priority")
    figures = [*_fair_figures(fair, options), *_priority_figures(first)]
    more = {"batch": batch, "fair": fair, "priority": first}
    goals.show(
        f"A cell of {_ITERATIONS} iterations while {options.notebooks} notebooks train",
        figures,
        options,
        more=more,
    )
    return 0


def _fair_figures(found: dict[str, Any], options: argparse.Namespace) -> list[Figure]:
    users = min(_OTHERS, options.notebooks) + 1
    alone, quantum_s = found["alone_s"], found["quantum_s"]
    p95s = [percentile(cells, 95) for cells in found["cells_s"]]
    bound_s = alone * users + quantum_s
    return [
        plain("fair: p95 / alone", [p95 / alone for p95 in p95s]),
        plain("fair: the person's part of the device", [each["own"] for each in found["parts"]]),
        at_most(f"fair: p95 / (alone x {users} users + quantum)", [p / bound_s for p in p95s], 1.0),
    ]


def _priority_figures(found: dict[str, Any]) -> list[Figure]:
    alone, segment_s = found["alone_s"], found["segment_s"]
    p95s = [percentile(cells, 95) for cells in found["cells_s"]]
    bound_s = alone + _ITERATIONS * segment_s
    return [
        plain("interactive: p95 / alone", [p95 / alone for p95 in p95s]),
        at_most(
            f"interactive: p95 / (alone + {_ITERATIONS} segments)", [p / bound_s for p in p95s], 1.0
        ),
    ]


def _measure(options: argparse.Namespace, batch: int, policy: str) -> dict[str, Any]:
    """Seconds of cells, alone and beside the others, and what to hold them against."""
    with _classroom(options, batch, policy) as (bench, person, others):
        count = max(3, round(options.seconds / 1.5))
        alone = _cells(person, count)
        cells = []
        for _ in range(options.repeat):
            for other in others:
                other.tell("train", seconds=options.seconds)
            cells.append(_cells(person, count, until_s=options.seconds))
            answers = [other.answer() for other in others]
        alone += _cells(person, count)
        rows = bench.status().sessions
    trained = [row for row in rows if row.user != _PERSON]
    numbers = {row.id for row in trained}
    pieces = pieces_of(bench.traced, max(each["begin"] for each in answers))
    theirs = [piece.seconds for piece in pieces if piece.session in numbers]
    iteration_s = statistics.median(row.device_seconds / row.iterations for row in trained)
    return {
        "alone_s": statistics.median(end - begin for begin, end in alone),
        "all_alone_s": [end - begin for begin, end in alone],
        "cells_s": [[end - begin for begin, end in found] for found in cells],
        "iteration_s": iteration_s,
        "quantum_s": Limits().quantum_of(iteration_s),
        "segment_s": percentile(theirs, 95),
        "parts": [_parts(bench, found, numbers) for found in cells],
        "parts_alone": _parts(bench, alone, numbers),
    }


def _parts(
    bench: Bench, cells: Sequence[tuple[float, float]], others: Collection[int]
) -> dict[str, float]:
    """Parts of the cells' time in which the device was at the person's work and at others'."""
    passed = own = theirs = 0.0
    for begin, end in cells:
        passed += end - begin
        for piece in pieces_of(bench.traced, begin, end):
            if piece.session in others:
                theirs += piece.seconds
            else:
                own += piece.seconds
    return {"own": own / passed, "others": theirs / passed}


def _cells(
    person: NotebookProcess, count: int, until_s: float = float("inf")
) -> list[tuple[float, float]]:
    """Begin and end of cells, of as many as fit while the others train."""
    person.tell(
        "cells", count=count, iterations=_ITERATIONS, pause_s=_PAUSE_S, until_s=until_s - _PAUSE_S
    )
    found: list[tuple[float, float]] = person.answer()["cells"]
    return found


@contextmanager
def _classroom(
    options: argparse.Namespace, batch: int, policy: str
) -> Iterator[tuple[Bench, NotebookProcess, list[NotebookProcess]]]:
    settings = {"policy": policy, "user_quotas": {_PERSON: {"priority": "interactive"}}}
    bench = Bench(device=options.device, threads=1, lanes=1, settings=settings, trace=True)
    how: dict[str, Any] = {"model": "cnn", "batch": batch, "device": "cuda", "threads": 1}
    with bench, Group() as group:
        person = group.start("person", bench.seat("person", _PERSON, "interactive"), **how)
        for number in range(options.notebooks):
            seat = bench.seat(f"notebook {number}", f"user{number % _OTHERS + 1}")
            group.start(f"notebook {number}", seat, **how)
        group.wait_until_ready()
        yield bench, person, group.members[1:]
