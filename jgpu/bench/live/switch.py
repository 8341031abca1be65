"""Measure switching: from the last end of one session's work to the first begin of the next's.

Looked at in the executor, on one lane, with as few runnable processes as cores and with many more
(native processes that train beside the notebooks); beside it two native processes that take turns
on one core, which stamp their own steps.
"""

import argparse
import os
import time
from bisect import bisect_left
from collections.abc import Sequence
from pathlib import Path
from threading import Event, Thread
from typing import Any, Final

from jgpu.bench.broker import Bench
from jgpu.bench.rig import goals
from jgpu.bench.rig.goals import Figure, at_most, percentile, plain
from jgpu.bench.rig.lanes import Switch, pieces_of, switches_of
from jgpu.bench.rig.notebooks import NATIVE, Group, NotebookProcess, batch_of, together
from jgpu.errors import WorkFailed
from jgpu.kernelprovider.environment import outer_environment

__all__ = ["add_options", "main", "native_switches"]

_MEDIAN_MS, _P99_MS = 0.5, 2.0
#: part of what native processes see that is aimed at where the host is overloaded
_PART: Final = 1 / 3
_LOOK_S: Final = 0.01
#: switches in a calm host that must have been seen before they are judged
_LEAST: Final = 20


def add_options(parser: argparse.ArgumentParser) -> None:
    """What can be said about it on the command line."""
    goals.add_common(parser, seconds=10.0, repeat=3, target_ms=20.0)
    parser.add_argument(
        "--notebooks", type=int, default=8, help="how many overload the host (default: 8)"
    )


def main(options: argparse.Namespace) -> int:
    """Measure, print, write."""
    batch = batch_of("cnn", options.target_ms, outer_environment(os.environ))
    calm, busy = _shared(options, batch)
    native = _native(options, batch)
    p99s = [percentile(found, 99) for found in native]
    figures = [
        *_calm_figures(calm),
        *_figures("overloaded", [each["ms"] for each in busy]),
        plain("overloaded: looks with more runnable than cores", _over(busy), "%"),
        plain("native, two on a core: median", [percentile(each, 50) for each in native], "ms"),
        plain("native, two on a core: p99", p99s, "ms"),
        at_most(
            "overloaded p99 / native p99",
            [_p99_ms(found) / p99 for found, p99 in zip(busy, p99s, strict=True)],
            _PART,
        ),
    ]
    more = {
        "batch": batch,
        "runnable": {
            "two readers": [each["runnable"] for each in calm],
            "overloaded": [each["runnable"] for each in busy],
        },
        "switches": {"two readers": [*map(_count, calm)], "overloaded": [*map(_count, busy)]},
        "native_switches": [len(each) for each in native],
    }
    goals.show("From one session to the next", figures, options, notes=_NOTES, more=more)
    return 0


_NOTES: Final = (
    "Counted are switches to a session whose work was there already; the others wait for a client.",
    "calm: with two notebooks that read each loss, switches around which looks at the host found "
    "no more runnable processes than cores.",
    "overloaded: beside the notebooks a native process trains for each core.",
    "Natively a process is taken off its core in mid-step: it is from the last end of a step of "
    "one to the first begin of a step of the other.",
    "Published: Salus below 1 s, PipeSwitch 5 to 35 ms, Gandiva 100 ms to 1 s (whole jobs).",
)


def _figures(name: str, found: Sequence[Sequence[float]]) -> list[Figure]:
    return [
        plain(f"{name}: {word}", [percentile(each, percent) for each in found], "ms")
        for percent, word in ((50, "median"), (99, "p99"))
    ]


def _calm_figures(found: Sequence[dict[str, Any]]) -> list[Figure]:
    """Judged only if the host was calm, by the looks around each switch."""
    over = plain("two readers: looks with more runnable than cores", _over(found), "%")
    calm = [each["calm_ms"] for each in found if len(each["calm_ms"]) >= _LEAST]
    everything = _figures("two readers, all switches", [each["ms"] for each in found])
    if not calm:
        return [*everything, over]
    medians, p99s = ([percentile(each, percent) for each in calm] for percent in (50, 99))
    return [
        at_most("calm: median", medians, _MEDIAN_MS, "ms"),
        at_most("calm: p99", p99s, _P99_MS, "ms"),
        *everything,
        over,
    ]


def _over(found: Sequence[dict[str, Any]]) -> list[float]:
    return [100 * each["runnable"]["over"] for each in found]


def _p99_ms(found: dict[str, Any]) -> float:
    return percentile(found["ms"], 99)


def _count(found: dict[str, Any]) -> dict[str, int]:
    return {"counted": len(found["ms"]), "calm": len(found["calm_ms"]), "all": found["all"]}


# -- shared ----------------------------------------------------------------------------------


def _shared(
    options: argparse.Namespace, batch: int
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """What is found with two notebooks that wait for each loss, and with many that do not."""
    bench = Bench(device=options.device, threads=1, lanes=1, trace=True)
    model = {"model": "cnn", "batch": batch, "threads": 1}
    with bench, Group() as group, Group() as others:
        for number in range(options.notebooks):
            name = f"user{number + 1}"
            group.start(name, bench.seat(name, name), device="cuda", **model)
        for _ in os.sched_getaffinity(0):
            others.start(NATIVE, outer_environment(os.environ), device="cpu", **model)
        group.wait_until_ready()
        others.wait_until_ready()
        repeats = range(options.repeat)
        calm = [_stretch(group.members[:2], options.seconds, every=1) for _ in repeats]
        busy = []
        for _ in repeats:
            for other in others.members:
                other.tell("train", seconds=options.seconds + 1.0)
            busy.append(_stretch(group.members, options.seconds, every=10))
            for other in others.members:
                other.answer()
    for found in (*calm, *busy):
        pieces = pieces_of(bench.traced, found["begin"], found["end"])
        switches = switches_of(pieces)
        found["ms"] = [1e3 * switch.seconds for switch in switches if switch.waited_for]
        found["calm_ms"] = [
            1e3 * switch.seconds
            for switch in switches
            if switch.waited_for and _is_calm(found["looks"], switch.at)
        ]
        found["all"] = len(switches)
        if not found["ms"]:
            raise WorkFailed("No session followed another; measure for longer.")
    return calm, busy


def _stretch(members: Sequence[NotebookProcess], seconds: float, *, every: int) -> dict[str, Any]:
    with _Runnable() as runnable:
        answers = together(members, "train", seconds=seconds, every=every)
    begin, end = max(each["begin"] for each in answers), min(each["end"] for each in answers)
    return {"begin": begin, "end": end, "runnable": runnable.summary(), "looks": runnable.looks}


def _is_calm(looks: Sequence[tuple[float, int]], at: float) -> bool:
    """Whether no more wanted to run than there are cores, just before and just after."""
    cores = len(os.sched_getaffinity(0))
    after = bisect_left(looks, (at, 0))
    around = looks[max(0, after - 1) : after + 1]
    return len(around) == 2 and all(count <= cores for _, count in around)


class _Runnable:
    """Looks at how many processes want to run, on a thread of its own; a context manager."""

    def __init__(self) -> None:
        self._stop = Event()
        #: when, and how many besides the one that looks
        self.looks: list[tuple[float, int]] = []
        self._thread = Thread(target=self._look)

    def __enter__(self) -> "_Runnable":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._stop.wait(_LOOK_S):
            for line in Path("/proc/stat").read_text(encoding="ascii").splitlines():
                if line.startswith("procs_running"):
                    self.looks.append((time.monotonic(), int(line.split()[1]) - 1))

    def summary(self) -> dict[str, float]:
        """Their mean, and the part of looks with more of them than cores."""
        cores = len(os.sched_getaffinity(0))
        found = [count for _, count in self.looks] or [0]
        over = sum(count > cores for count in found) / len(found)
        return {"mean": sum(found) / len(found), "over": over}


# -- native ----------------------------------------------------------------------------------


def _native(options: argparse.Namespace, batch: int) -> list[list[float]]:
    """Milliseconds between two processes on one core, by repetition."""
    core = min(os.sched_getaffinity(0))
    with Group() as group:
        for _ in range(2):
            group.start(
                NATIVE,
                outer_environment(os.environ),
                model="cnn", batch=batch, device="cpu", threads=1, core=core,
            )  # fmt: skip
        group.wait_until_ready()
        found = []
        for _ in range(options.repeat):
            answers = together(group.members, "train", seconds=options.seconds, stamps=True)
            stamps = [each["stamps"] for each in answers]
            found.append([1e3 * switch.seconds for switch in native_switches(*stamps)])
            time.sleep(_LOOK_S)
    return found


def native_switches(
    one: Sequence[tuple[float, float]], other: Sequence[tuple[float, float]]
) -> list[Switch]:
    """From each last end of a process's steps to the first begin of a step of the other.

    Both are in the midst of a step whenever the core goes from one to the other.
    """
    moments = sorted(
        (moment, who, kind)
        for who, steps in enumerate((one, other))
        for step in steps
        for kind, moment in zip(("begin", "end"), step, strict=True)
    )
    found, ended, running = [], [0.0, 0.0], -1
    for moment, who, kind in moments:
        if kind == "end":
            ended[who] = moment
            continue
        since = ended[1 - who]
        if running == 1 - who and since:
            found.append(Switch(since, moment - since, waited_for=True))
        running = who
    return found
