"""Run PyTorch's test databases of operators, modules and optimizers through the shared device.

Every sample is computed natively and on the device, by one thread each, and compared. On the device
it is computed three times (step by step, compiled, with values told before they are asked for), and
each result counts. Several sessions take turns, cases and samples come in random order: what one of
them left in a cache would answer for another. Without --only, --dtype and --every the whole takes
about half an hour on two cores.
"""

import argparse
import importlib.util
import json
import random
from collections import Counter
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

from jgpu.bench.broker import Bench, host
from jgpu.bench.fidelity.cases import OUTCOMES, CaseResult, chosen
from jgpu.bench.fidelity.expectations import Expectations, page
from jgpu.bench.fidelity.workers import PATIENCE_S, compare, list_cases
from jgpu.errors import ConfigError

__all__ = ["add_options", "main", "patience_s", "put_right"]

#: the device on which an op costs ten times what it costs on `cpu`
_SLOW: Final = "cuda-on-host"


def add_options(parser: argparse.ArgumentParser) -> None:
    """What can be said about it on the command line."""
    parser.add_argument(
        "--only", default="", metavar="TEXT", help='entries with TEXT, such as "op add", "optim "'
    )
    parser.add_argument(
        "--device", default="cpu", help="the broker's: cpu (default), or cuda-on-host"
    )
    parser.add_argument("--dtype", default="", help="one dtype, such as float32")
    parser.add_argument("--every", type=int, default=1, metavar="N", help="every N-th case")
    parser.add_argument("--first", type=int, default=0, metavar="K", help="counted from the K-th")
    parser.add_argument("--workers", type=int, default=2, help="processes (default: 2)")
    parser.add_argument(
        "--seed", type=int, default=1, help="what the order of cases and samples follows from"
    )
    parser.add_argument(
        "--patience", type=float, metavar="SECONDS",
        help=f"what takes longer is hung (default: {PATIENCE_S:g}; on {_SLOW} ten times that)",
    )  # fmt: skip
    parser.add_argument("--json", type=Path, metavar="FILE", help="write what was found here")
    parser.add_argument(
        "--expect", action="store_true", help="fail where something is worse than is known"
    )
    parser.add_argument(
        "--update", action="store_true", help="take what a whole run found as what is known"
    )
    parser.add_argument(
        "--page", type=Path, metavar="FILE", help="write the page about what is known, run nothing"
    )


def main(options: argparse.Namespace) -> int:
    """Compare, print, write; 1 if something is worse than is known."""
    if options.page:
        options.page.write_text(page(Expectations.read()))
        return 0
    if importlib.util.find_spec("expecttest") is None:
        raise ConfigError("PyTorch's test databases need expecttest: pip install 'jgpu[test]'.")
    whole = not (options.only or options.dtype) and options.every == 1
    if options.update and not whole:
        raise ConfigError("--update takes a whole run: leave --only, --dtype and --every out.")
    if min(options.every, options.workers) < 1 or options.first < 0:
        raise ConfigError("--every and --workers count from 1, --first from 0.")
    if options.patience is not None and not options.patience > 0:
        raise ConfigError("--patience is a number of seconds above 0.")
    found = sorted(_run(options), key=lambda each: each.case)
    if options.json:
        lines = {"host": host(), "seed": options.seed, "cases": [each.as_json() for each in found]}
        options.json.write_text(json.dumps(lines, indent=1) + "\n")
    expectations = Expectations.read()
    if options.update:
        expectations.updated(version("torch").partition("+")[0], found).write()
    elif options.expect:
        worse = [sentence for each in found for sentence in expectations.worse(each)]
        print("\n".join([*worse, f"{len(worse)} worse than is known"]))
        return 1 if worse else 0
    return 0


def _run(options: argparse.Namespace) -> list[CaseResult]:
    from rich.console import Console

    console = Console()
    found: list[CaseResult] = []
    with Bench(device=options.device, threads=1, lanes=2) as bench:
        known = list_cases(bench.environ)
        cases = list(
            chosen(
                known.cases,
                only=options.only, dtype=options.dtype, every=options.every, first=options.first,
            )
        )  # fmt: skip
        if not cases:
            raise ConfigError(
                f"No entry of the databases has {options.only!r} and dtype {options.dtype!r}: "
                "leave out --only, --dtype or --first to see what there is."
            )
        random.Random(options.seed).shuffle(cases)
        console.print(f"Cases and samples in the order of --seed {options.seed}.", highlight=False)
        with console.status("") as status:

            def tell(each: CaseResult) -> None:
                found.append(each)
                status.update(f"{len(found)} of {len(cases)} cases, {each.case.name}")

            compare(
                cases, bench.environ, tell,
                workers=options.workers, seed=options.seed, patience_s=patience_s(options),
            )  # fmt: skip
    console.print(_table(found))
    console.print(put_right(found), style="none", highlight=False)
    console.print(_names(known.by_hand))
    return found


def patience_s(options: argparse.Namespace) -> float:
    """For how long a sample may say nothing: as asked for, or as the device needs.

    L-BFGS reads 7,000 numbers in each run of a sample; on the slow one each costs milliseconds.
    """
    if options.patience is not None:
        return float(options.patience)
    return PATIENCE_S * (10 if options.device == _SLOW else 1)


def _table(found: list[CaseResult]) -> Any:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, title="On the shared device, judged by native PyTorch")
    for heading in ("", "cases", "samples", "compared", *OUTCOMES):
        table.add_column(heading, justify="right" if heading else "left", no_wrap=True)
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


def put_right(found: list[CaseResult]) -> str:
    """How often the device's geometry was not the one that was inferred."""

    def outputs(word: str) -> str:
        entries = {(each.case.database, each.case.entry) for each in found if each.geometry[word]}
        total = sum(each.geometry[word] for each in found)
        return f"{total:,} outputs in {len(entries):,} entries"

    asked = sum(each.geometry["asked"] for each in found)
    return (
        f"Geometry learnt at a first run: {outputs('restrided')} restrided, "
        f"{outputs('reshaped')} of another shape or type. "
        f"Asked of the device beforehand: {asked:,} ops."
    )


def _names(by_hand: dict[str, int]) -> Any:
    from rich import box
    from rich.table import Table

    total = sum(by_hand.values())
    table = Table(box=box.SIMPLE_HEAD, title=f"Ops that the device names by hand: {total}")
    table.add_column("names", justify="right")
    table.add_column("because")
    for reason, count in by_hand.items():
        table.add_row(str(count), reason)
    return table
