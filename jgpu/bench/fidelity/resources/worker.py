"""Compares PyTorch's test databases natively and on the shared device, in a process with a seat.

    python worker.py list                      prints how many ops the device names by hand, by
                                               reason, then every case, a line of JSON each
    python worker.py                           reads cases from standard input, a line of JSON each

A case is `{"database": "op", "entry": "add", "dtype": "float32", "skip": 0, "seed": 1}`. The order
of its samples follows from the seed. For each from the `skip`-th place on one line is printed
before it runs, with the sample's number in the database, `{"at": 3, "sample": 0}`, and one after
it, `{"sample": 0, "found": [["forward", "equal", ""], ...], "geometry": {"restrided": 1, ...}}`
(what the device put right, see `GEOMETRY` in cases.py); after the last `{"done": 4}`. Whoever reads
can tell from it where a process hung or died.
"""

import json
import os
import random
import sys
import warnings
from typing import Any

import modules
import operators
import optimizers
import torch
from judging import SEED, sentence, settle

from jgpu.device import current
from jgpu.device.composed.named import by_hand

DATABASES: dict[str, Any] = {"op": operators, "module": modules, "optim": optimizers}


def say(out: Any, line: Any) -> None:
    """One line of JSON, at once."""
    out.write(json.dumps(line) + "\n")
    out.flush()


def run(case: dict[str, Any], out: Any) -> None:
    """All samples of a case."""
    samples, failed = drawn(case)
    for place, (number, compare) in enumerate(samples):
        if place >= case["skip"]:
            say(out, {"at": place, "sample": number})
            before = geometry()
            outcomes = found(compare)
            put_right = {word: n - before[word] for word, n in geometry().items()}
            say(out, {"sample": number, "found": outcomes, "geometry": put_right})
    if failed:
        say(out, {"sample": len(samples), "found": failed, "geometry": {}})
    say(out, {"done": len(samples)})


def drawn(case: dict[str, Any]) -> tuple[list[tuple[int, Any]], list[list[str]]]:
    """A case's samples with their numbers, in the seed's order; how the database failed, if so."""
    made: list[tuple[int, Any]] = []
    torch.manual_seed(SEED)
    try:
        samples = DATABASES[case["database"]].samples(case["entry"], getattr(torch, case["dtype"]))
        made.extend(enumerate(samples))
    except Exception as error:  # the database's own code, which makes the samples
        return [], [["samples", "error", sentence(error)]]
    random.Random(f"{case['seed']} {case['entry']} {case['dtype']}").shuffle(made)
    return made, []


def found(compare: Any) -> list[list[str]]:
    """The outcomes of one sample, and what the device told only afterwards."""
    outcomes = [list(each) for each in compare()]
    late = settle()
    return [*outcomes, ["later", "error", late]] if late else outcomes


def geometry() -> dict[str, int]:
    """What the device has put right so far in this process."""
    learnt = current.session.learnt
    return {word: getattr(learnt, word) for word in ("restrided", "reshaped", "asked")}


def main(arguments: list[str]) -> None:
    """List the cases, or run those that standard input names."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what an op prints is no line of ours
    if arguments == ["list"]:
        say(out, {reason: len(names) for reason, names in by_hand().items()})
        for name, database in DATABASES.items():
            for entry, dtype in database.cases():
                say(out, {"database": name, "entry": entry, "dtype": str(dtype)[6:]})
        return
    for line in sys.stdin:
        run(json.loads(line), out)


if __name__ == "__main__":
    main(sys.argv[1:])
