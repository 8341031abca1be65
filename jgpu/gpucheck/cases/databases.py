"""PyTorch's own database of ops: what the device learns of them, whatever it is asked for."""

import importlib.util
import time
from collections import Counter
from typing import Final

from jgpu.bench.fidelity.cases import GEOMETRY, CaseResult, chosen
from jgpu.bench.fidelity.workers import compare, list_cases
from jgpu.gpucheck.stand import SkipCase, Stand

__all__ = ["strides"]

_EVERY: Final = 16
_EVERY_ON_HOST: Final = 120
_WORKERS: Final = 4
_WORKERS_ON_HOST: Final = 1
_SEED: Final = 1
#: named by op where the same is found of a few
_MOST: Final = 6


def strides(stand: Stand) -> None:
    """Ops of the database in single precision, against the host: what comes otherwise, in counts.

    Values are judged by the host's, whose last bits are others: what must hold is that nobody
    hangs and that the executor lives.
    """
    if importlib.util.find_spec("expecttest") is None:
        raise SkipCase("PyTorch's database of ops needs expecttest: pip install 'jgpu[test]'.")
    every = _EVERY_ON_HOST if stand.on_host else _EVERY
    with stand.broker(lanes=2) as place:
        known = list_cases(place.bench.environ).cases
        cases = list(chosen(known, only="op ", dtype="float32", every=every))
        begin = time.monotonic()
        workers = _WORKERS_ON_HOST if stand.on_host else _WORKERS
        found: list[CaseResult] = []
        compare(cases, place.bench.environ, found.append, workers=workers, seed=_SEED)
        took_s = time.monotonic() - begin
        restarts = place.device().restarts
    stand.same("the executor lives", restarts, 0)
    stand.same("every case is told of", len(found), len(cases))
    _count(stand, found)
    stand.figure("cases", len(found))
    stand.figure("time", took_s, "s")


def _count(stand: Stand, found: list[CaseResult]) -> None:
    counts = sum((each.counts for each in found), Counter[str]())
    stand.same("nothing hangs", counts["hung"], 0)
    for outcome, count in sorted(counts.items()):
        stand.figure(outcome, count)
    for word in GEOMETRY:
        stand.figure(word, sum(each.geometry[word] for each in found))
    for outcome in ("wrong", "error"):
        named = [_named(each, outcome) for each in found if each.counts[outcome]]
        for text in named[:_MOST]:
            stand.note(text)
        if named[_MOST:]:
            stand.note(f"{outcome}: {len(named) - _MOST} more")


def _named(result: CaseResult, outcome: str) -> str:
    first = next(each for each in result.findings if each.outcome == outcome)
    return f"{result.case.entry}, {first.variant}: {outcome}, {first.text}"
