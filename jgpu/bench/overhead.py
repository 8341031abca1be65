"""Measure what sharing costs: a training step on the shared device against the same step alone.

Each measurement starts a broker of its own on a free socket and runs native steps and steps on the
device in turn, in one process, at the same number of threads. Judge ratios, not times.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from jgpu.bench.broker import Bench, host
from jgpu.errors import WorkFailed

__all__ = ["add_options", "main"]

_PROGRAMS: Final = Path(__file__).parent / "resources"
#: microseconds of CPU that recording may take, by what the notebook says
_CPU_GOALS: Final = {"a + b": 5.8, "a.add_(b)": 3.8, "a.view(16)": 5.0}
_OPS_GOAL: Final = 150_000
#: steps whose calls in the executor are counted, by what the notebook says
_STEPS: Final = {"mlp": "a step of a small MLP", "item": "a.sum().item()"}
_BYTES_GOAL: Final = 2048


@dataclass(frozen=True, slots=True)
class _Case:
    """A model, the time of its native step, the threads of both, and the ratio aimed at."""

    model: str
    target_ms: float
    threads: int
    goal: float

    @property
    def name(self) -> str:
        return f"{self.model} {self.target_ms:g} ms, {self.threads} thread" + (
            "s" if self.threads > 1 else ""
        )


_CASES: Final = (
    _Case("cnn", 30, 1, 0.95),
    _Case("cnn", 10, 1, 0.95),
    _Case("mlp", 1, 1, 1.25),
    _Case("cnn", 30, 2, 1.03),
)


def add_options(parser: argparse.ArgumentParser) -> None:
    """What can be said about it on the command line."""
    parser.add_argument("--pairs", type=int, default=15, help="pairs per case (default: 15)")
    parser.add_argument(
        "--block", type=float, default=0.3, metavar="SECONDS", help="length of a block of steps"
    )
    parser.add_argument("--only", default="", metavar="TEXT", help="cases whose name has TEXT")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every figure here")


def main(options: argparse.Namespace) -> int:
    """Measure, print, write."""
    found = _overhead(options)
    if options.json:
        options.json.write_text(json.dumps(found, indent=1) + "\n")
    return 0


def _overhead(options: argparse.Namespace) -> dict[str, Any]:
    from rich.console import Console

    console = Console()
    cases = [case for case in _CASES if options.only in case.name]
    rows = []
    for case in cases:
        with console.status(f"{case.name} ..."):
            rows.append(_measured(case, options))
        console.print(_sentence(rows[-1]), highlight=False)
    with console.status("recording ..."):
        recording = _run("recording.py", "rates", {"seconds": 2.0}, device="null")
        costs = _run("recording.py", "costs", {"blocks": 40}, device="null")
    with console.status("counting ..."):
        calls = {name: _calls(step) for step, name in _STEPS.items()}
    found = {"host": host(), "overhead": rows, "recording": recording, "cpu": costs}
    found["executor_calls"] = calls
    console.print(_table(rows))
    console.print(_cpu_table(costs))
    for name, figures in recording.items():
        rate = statistics.median(figures["rates"])
        figures["median_rate"] = rate
        console.print(f"recorded, {name}: {rate:,.0f} ops/s (goal {_OPS_GOAL:,})", highlight=False)
    for name, counted in calls.items():
        console.print(_calls_sentence(name, counted), highlight=False)
    return found


def _measured(case: _Case, options: argparse.Namespace) -> dict[str, Any]:
    from jgpu.bench.figures import ratio_of

    arguments = {
        "model": case.model,
        "target_ms": case.target_ms,
        "threads": case.threads,
        "pairs": options.pairs,
        "block_s": options.block,
    }
    found = _run("training.py", "overhead", arguments, device="cpu", threads=case.threads)
    pairs = found["pairs"]
    found |= {"name": case.name, "goal": case.goal}
    found["native_ms"] = statistics.median(row["native_ms"] for row in pairs)
    for name in ("device", "streamed"):
        found[f"{name}_ms"] = statistics.median(row[f"{name}_ms"] for row in pairs)
        ratio = ratio_of([(row["native_ms"], row[f"{name}_ms"]) for row in pairs])
        found[f"{name}_ratio"] = asdict(ratio)
    return found


def _run(
    program: str, what: str, arguments: dict[str, Any], *, device: str, threads: int = 1
) -> dict[str, Any]:
    """What the program prints, run with a seat at a broker of its own."""
    with Bench(device=device, threads=threads, lanes=1) as bench:
        return _result(program, what, arguments, bench.environ)


def _result(
    program: str, what: str, arguments: dict[str, Any], environ: dict[str, str]
) -> dict[str, Any]:
    """What the program prints."""
    done = subprocess.run(
        [sys.executable, str(_PROGRAMS / program), what, json.dumps(arguments)],
        env=environ,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise WorkFailed(f"The measurement failed:\n{done.stderr.strip()}")
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def _calls(step: str) -> dict[str, int]:
    """Calls that a step costs an executor which knows it; see `resources/replaying.py`."""
    with TemporaryDirectory(prefix="jgpu-bench-") as directory:
        file = str(Path(directory) / "messages")
        kept = {"step": step, "times": 150, "file": file}
        _run("sending.py", "kept", kept, device="cpu")
        return _result("replaying.py", "calls", {"file": file, "steps": 50}, dict(os.environ))


def _calls_sentence(name: str, counted: dict[str, int]) -> str:
    return (
        f"executor, {name}: {counted['python']} Python and {counted['c']} C calls, of these "
        f"{counted['python_of_programs']} and {counted['c_of_programs']} in programs"
    )


def _sentence(row: dict[str, Any]) -> str:
    ratio = row["device_ratio"]
    same = "the same bits" if row["bit_identical"] else "OTHER BITS"
    return (
        f"{row['name']}: {ratio['median']:.3f} of native "
        f"[{ratio['low']:.3f}, {ratio['high']:.3f}], {same}"
    )


def _table(rows: Sequence[dict[str, Any]]) -> Any:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, title="A step on the shared device and alone")
    table.add_column("step")
    for heading in (
        "native ms", "device ms", "ratio", "95 %", "goal", "no wait", "trips", "bytes", "ops",
    ):  # fmt: skip
        table.add_column(heading, justify="right")
    for row in rows:
        ratio, streamed = row["device_ratio"], row["streamed_ratio"]
        table.add_row(
            row["name"],
            f"{row['native_ms']:.2f}",
            f"{row['device_ms']:.2f}",
            f"{ratio['median']:.3f}",
            f"{ratio['low']:.3f}-{ratio['high']:.3f}",
            f"{row['goal']:.2f}",
            f"{streamed['median']:.3f}",
            f"{row['round_trips_item']:g} / {row['round_trips_streamed']:g}",
            f"{row['bytes_item']:.0f}",
            str(row["ops"]),
        )
    table.caption = (
        f"trips: per step, with loss.item() / without; bytes: per repeated step, goal {_BYTES_GOAL}"
    )
    return table


def _cpu_table(costs: dict[str, dict[str, float]]) -> Any:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, title="CPU of a recorded op, cut and send included")
    table.add_column("op")
    for heading in ("us", "floor", "goal"):
        table.add_column(heading, justify="right")
    for said, cost in costs.items():
        goal = _CPU_GOALS.get(said)
        figures = f"{cost['us']:.2f}", f"{cost['floor_us']:.2f}", f"{goal:.1f}" if goal else ""
        table.add_row(said, *figures)
    table.caption = "floor: torch's way into Python and a wrapper made there, nothing recorded"
    return table
