"""Measure small programs, such as students write, on the shared device and natively.

Each takes 0.2 to 2 ms a step. One process with a seat at a broker of its own runs both sides in
turn on one thread each, and compares bit for bit what the steps return. A program that waits for
the device at each step (`.item()`, `if` over a tensor) has a bound for these waits; others are held
against their native time.
"""

import argparse
import json
import statistics
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from jgpu.bench.broker import Bench
from jgpu.bench.rig import goals
from jgpu.bench.rig.goals import Figure, at_least, at_most
from jgpu.errors import WorkFailed

__all__ = ["PROGRAMS", "add_options", "figures_of", "main"]

_MEASURE: Final = Path(__file__).parent / "resources" / "measure.py"

#: by module, what it is called
PROGRAMS: Final = {
    "actor_critic": "actor-critic, a tiny environment",
    "ode_solver": "adaptive solver of an equation",
    "gaussian_process": "Gaussian process by Cholesky",
    "variational": "variational inference",
    "lstm_cells": "LSTM cells in a loop",
    "full_batch": "full-batch training, tiny net",
    "generation": "text, with a cache that grows",
    "loader": "DataLoader over device tensors",
    "gan": "adversarial pair",
    "metric": "loss and accuracy each step",
}
#: what a wait may cost, and from how many a step on a program is bound by them
_WAIT_MS: Final = 0.1
_BOUND_BY_WAITS: Final = 0.5
_MOST: Final = 1.5
_MEDIAN: Final = 1.25


def add_options(parser: argparse.ArgumentParser) -> None:
    """What can be said about it on the command line."""
    parser.add_argument("--pairs", type=int, default=9, help="pairs of blocks (default: 9)")
    parser.add_argument(
        "--block", type=float, default=0.25, metavar="SECONDS", help="length of a block of steps"
    )
    parser.add_argument(
        "--compare",
        type=float,
        default=3.0,
        metavar="TIMES",
        help="so often each program is gone through from its beginning to compare (default: 3)",
    )
    parser.add_argument(
        "--only", default="", metavar="TEXT", help=f"programs with TEXT: {', '.join(PROGRAMS)}"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every figure here")


def main(options: argparse.Namespace) -> int:
    """Measure, print, write."""
    names = [name for name in PROGRAMS if options.only in name]
    rows = _measured(names, options)
    title = "Small programs on the shared device and alone"
    goals.show(title, figures_of(rows), options, notes=notes_of(rows), more={"programs": rows})
    return 0


def _measured(names: Sequence[str], options: argparse.Namespace) -> list[dict[str, Any]]:
    """What each program found, in the words of `measure.py`."""
    asked = {
        "names": names,
        "pairs": options.pairs,
        "block_s": options.block,
        "periods": options.compare,
    }
    with Bench(device="cpu", threads=1, lanes=1) as bench:
        done = subprocess.run(
            [sys.executable, str(_MEASURE), json.dumps(asked)],
            env=bench.environ,
            capture_output=True,
            text=True,
            check=False,
        )
    if done.returncode:
        raise WorkFailed(f"The measurement failed:\n{done.stderr.strip()}")
    return [json.loads(line) for line in done.stdout.splitlines()]


def figures_of(rows: Sequence[dict[str, Any]]) -> list[Figure]:
    """Each program against its bound, the median over all, and how many had native bits."""
    figures = [_ratio(row) for row in rows]
    if rows:
        medians = [figure.value for figure in figures]
        figures.append(at_most("all, shared / native", medians, _MEDIAN))
        same = sum(row["bit_identical"] for row in rows)
        figures.append(at_least("programs with native bits", [same], len(rows)))
    return figures


def _ratio(row: dict[str, Any]) -> Figure:
    ratios = [pair["device_ms"] / pair["native_ms"] for pair in row["pairs"]]
    waits, native = _waits(row), _median(row, "native_ms")
    goal = 1 + waits * _WAIT_MS / native if waits >= _BOUND_BY_WAITS else _MOST
    return at_most(f"{PROGRAMS[row['name']]}: shared / native", ratios, goal)


def notes_of(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Of each program its times, its waits, and the bound that follows from them."""
    notes = []
    for row in rows:
        waits, native = _waits(row), _median(row, "native_ms")
        bound = f"waits x {1e3 * _WAIT_MS:.0f} us + native: {waits * _WAIT_MS + native:.2f} ms"
        notes.append(
            f"{PROGRAMS[row['name']]}: native {native:.2f} ms, shared "
            f"{_median(row, 'device_ms'):.2f} ms, {waits:.2g} waits a step; {bound}; "
            f"{row['compared']} steps compared: "
            f"{'the same bits' if row['bit_identical'] else 'OTHER BITS'}"
        )
    return notes


def _waits(row: dict[str, Any]) -> float:
    return _median(row, "waits")


def _median(row: dict[str, Any], what: str) -> float:
    return float(statistics.median(pair[what] for pair in row["pairs"]))
