"""Run PyTorch's test databases of operators, modules and optimizers through the shared device.

Every sample is computed natively and on the device, by one thread each, and compared. Without
--only, --dtype and --every the whole takes about an hour on two cores.
"""

import argparse
import importlib.util
import json
from collections import Counter
from pathlib import Path
from typing import Any

from jgpu.cli._bench.broker import Bench, host
from jgpu.cli._bench.fidelity.cases import OUTCOMES, Found, chosen
from jgpu.cli._bench.fidelity.workers import compare, list_cases
from jgpu.errors import ConfigError

__all__ = ["add_options", "main"]


def add_options(parser: argparse.ArgumentParser) -> None:
    """What can be said about it on the command line."""
    parser.add_argument(
        "--only", default="", metavar="TEXT", help='entries with TEXT, such as "op add", "optim "'
    )
    parser.add_argument("--dtype", default="", help="one dtype, such as float32")
    parser.add_argument("--every", type=int, default=1, metavar="N", help="every N-th case")
    parser.add_argument("--first", type=int, default=0, metavar="K", help="counted from the K-th")
    parser.add_argument("--workers", type=int, default=2, help="processes (default: 2)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write what was found here")


def main(options: argparse.Namespace) -> int:
    """Compare, print, write."""
    if importlib.util.find_spec("expecttest") is None:
        raise ConfigError("PyTorch's test databases need expecttest: pip install 'jgpu[test]'.")
    found = _run(options)
    if options.json:
        lines = {"host": host(), "cases": [each.as_json() for each in sorted_cases(found)]}
        options.json.write_text(json.dumps(lines, indent=1) + "\n")
    return 0


def sorted_cases(found: list[Found]) -> list[Found]:
    """In the order of the cases' names."""
    return sorted(found, key=lambda each: each.case)


def _run(options: argparse.Namespace) -> list[Found]:
    from rich.console import Console

    console = Console()
    found: list[Found] = []
    with Bench(device="cpu", threads=1, lanes=2) as bench:
        cases = list(
            chosen(
                list_cases(bench.environ),
                only=options.only, dtype=options.dtype, every=options.every, first=options.first,
            )
        )  # fmt: skip
        with console.status("") as status:

            def tell(each: Found) -> None:
                found.append(each)
                status.update(f"{len(found)} of {len(cases)} cases, {each.case.name}")

            compare(cases, bench.environ, tell, workers=options.workers)
    console.print(_table(found))
    return found


def _table(found: list[Found]) -> Any:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, title="On the shared device, judged by native PyTorch")
    for heading in ("database", "cases", "samples", "comparisons", *OUTCOMES):
        table.add_column(heading, justify="left" if heading == "database" else "right")
    for database in sorted({each.case.database for each in found}):
        mine = [each for each in found if each.case.database == database]
        counts = sum((each.counts for each in mine), Counter[str]())
        table.add_row(
            database,
            f"{len(mine):,}",
            f"{sum(each.samples for each in mine):,}",
            f"{counts.total():,}",
            *(f"{counts[outcome]:,}" for outcome in OUTCOMES),
        )
    return table
