"""Measure memory that is short: many sessions' models fit, their other tensors only a few at once.

Every session trains, rests and trains again, and compares what it kept with what it was. Beside it
the same as native processes in a control group with the same capacity, and the seconds in which a
gibibyte of a resting session is reclaimed for another and comes back.
"""

import argparse
import os
import statistics
import time
from collections.abc import Sequence
from typing import Any, Final

from jgpu.bench.broker import Bench
from jgpu.bench.rig import goals
from jgpu.bench.rig.controlgroup import ControlGroup
from jgpu.bench.rig.goals import Figure, at_least, at_most, plain
from jgpu.bench.rig.notebooks import NATIVE, Group, NotebookProcess
from jgpu.errors import ConfigError, WorkFailed
from jgpu.kernelprovider.environment import outer_environment

__all__ = ["add_options", "main", "weights_bytes"]

#: processes that import torch at once
_AT_ONCE: Final = 4
#: ephemeral memory besides what is kept, as a part of that: activations, and what rounds up
_SPARE: Final = 0.15
_WATCH_S: Final = 0.25
#: longer than a session is taken for busy after its last work
_IDLE_S: Final = 1.0


def add_options(parser: argparse.ArgumentParser) -> None:
    """What can be said about it on the command line."""
    goals.add_common(parser, seconds=2.0, repeat=3, target_ms=0.0)
    parser.add_argument("--sessions", type=int, default=30, help="how many (default: 30)")
    parser.add_argument("--few", type=int, default=4, help="whose tensors fit (default: 4)")
    parser.add_argument("--width", type=int, default=1024, help="of each model (default: 1024)")
    parser.add_argument("--kept-mb", type=int, default=64, help="MiB that each keeps (default: 64)")
    parser.add_argument(
        "--reclaim-mb", type=int, default=1024, help="MiB that are reclaimed (default: 1024)"
    )


def main(options: argparse.Namespace) -> int:
    """Measure, print, write."""
    capacity = capacity_of(options)
    shared = _shared(options, capacity)
    native, why = _native(options, capacity)
    moved = _moved(options)
    count = options.sessions
    figures = [
        at_least("sessions that ran to the end", [len(shared["answers"])], count),
        at_least("sessions whose tensors are equal", [shared["equal"]], count),
        at_most("bytes of models on the host", [shared["most_resident_away"]], 0),
        plain("most on the host at once", [shared["most_spilled"] / 2**20], "MiB"),
        plain("sessions that were spilled", [shared["sessions_spilled"]]),
        *_moved_figures(moved, options.reclaim_mb),
    ]
    if native is not None:
        figures.append(plain("native: processes that were killed", [native["killed"]]))
        why = f"Natively, {native['killed']} of {count} processes were killed for want of memory."
    more = {"capacity": capacity, "shared": shared, "native": native, "moved": moved}
    title = f"{count} sessions; room for all models and the tensors of {options.few}"
    goals.show(title, figures, options, notes=[why], more=more)
    return 0


def weights_bytes(width: int) -> int:
    """A model's weights, their gradient and their momentum."""
    return 3 * 4 * width * width


def capacity_of(options: argparse.Namespace) -> int:
    """Bytes for all models and for a few sessions' other tensors."""
    kept = options.kept_mb << 20
    few = options.few * (kept + int(_SPARE * kept) + (8 << 20))
    capacity: int = options.sessions * (weights_bytes(options.width) + (1 << 20)) + few
    return capacity


# -- shared ----------------------------------------------------------------------------------


def _shared(options: argparse.Namespace, capacity: int) -> dict[str, Any]:
    bench = Bench(device=options.device, threads=1, lanes=2, settings={"memory": capacity})
    with bench, Group("holder.py") as group:
        for number in range(options.sessions):
            name = f"notebook {number}"
            seat = bench.seat(name, f"user{number % 6 + 1}")
            _start(group, name, seat, options, number, device="cuda")
        for member in group.members:
            member.tell("make")
        watch = _MemoryWatch(bench)
        watch.until(group.members)
        made = [member.answer() for member in group.members]
        for member in group.members:
            member.tell("live", rounds=3, iterations=10, rest_s=options.seconds)
        watch.until(group.members)
        answers = [member.answer() for member in group.members]
    return {
        "made": made,
        "answers": answers,
        "equal": sum(each["equal"] for each in answers),
        **watch.found(),
    }


def _start(
    group: Group,
    name: str,
    environ: dict[str, str],
    options: argparse.Namespace,
    seed: int,
    **how: Any,
) -> None:
    """Start one; only so many at once are at the import of torch."""
    if seed and seed % _AT_ONCE == 0:
        for member in group.members[seed - _AT_ONCE : seed]:
            member.answer()
    group.start(
        name,
        environ,
        threads=1,
        width=options.width,
        kept_mb=options.kept_mb,
        seed=seed,
        **how,
    )
    if seed == options.sessions - 1:
        for member in group.members[seed - seed % _AT_ONCE :]:
            member.answer()


class _MemoryWatch:
    """Looks at the status again and again while sessions are at work."""

    def __init__(self, bench: Bench) -> None:
        self._bench = bench
        self._most_spilled = 0
        self._most_resident_away = 0
        self._spilled: set[int] = set()

    def until(self, members: Sequence[NotebookProcess]) -> None:
        """Look until all have an answer, or have ended."""
        while not all(member.has_answered() for member in members):
            self._look()
            time.sleep(_WATCH_S)

    def _look(self) -> None:
        rows = self._bench.status().sessions
        self._most_spilled = max(self._most_spilled, sum(row.spilled_bytes for row in rows))
        self._spilled |= {row.id for row in rows if row.spilled_bytes}
        # All that is not the model's goes at once: what goes beyond it would be the model's.
        away = [row.spilled_bytes - row.ephemeral_bytes for row in rows]
        self._most_resident_away = max([self._most_resident_away, *away])

    def found(self) -> dict[str, int]:
        """The most that was seen."""
        return {
            "most_spilled": self._most_spilled,
            "most_resident_away": self._most_resident_away,
            "sessions_spilled": len(self._spilled),
        }


# -- native ----------------------------------------------------------------------------------


def _native(options: argparse.Namespace, capacity: int) -> tuple[dict[str, Any] | None, str]:
    """Who is killed where native processes have the same capacity; None and why not."""
    try:
        control = ControlGroup(f"jgpu-bench-{os.getpid()}")
    except ConfigError as error:
        return None, f"Native processes were not tried: {error}"
    with control, Group("holder.py", join=control.join) as group:
        environ = outer_environment(os.environ)
        for number in range(options.sessions):
            _start(group, f"{NATIVE} {number}", environ, options, number, device="cpu")
        before = control.own_bytes()
        # What they are without tensors is theirs.
        control.limit(before + capacity)
        killed, finished = 0, 0
        for command in _LIFE:
            told = [member for member in group.members if member.alive and _told(member, command)]
            for member in told:
                try:
                    member.answer()
                    finished += command is _LIFE[-1]
                except WorkFailed:
                    killed += 1
    return {
        "killed": options.sessions - finished,
        "finished": finished,
        "bytes_without_tensors": before,
    }, ""


_LIFE: Final[tuple[dict[str, Any], ...]] = (
    {"do": "make"},
    {"do": "live", "rounds": 3, "iterations": 10, "rest_s": 0.5},
)


def _told(member: NotebookProcess, command: dict[str, Any]) -> bool:
    try:
        member.tell(**command)
    except WorkFailed:
        return False
    return True


# -- a gibibyte there and back ----------------------------------------------------------------


def _moved(options: argparse.Namespace) -> dict[str, list[float]]:
    """Seconds to take memory that is free and that another's is in, and to touch one's own."""
    mb = options.reclaim_mb
    capacity = (mb + mb // 4 + 128) << 20
    bench = Bench(device=options.device, threads=1, lanes=2, settings={"memory": capacity})
    with bench, Group("holder.py") as group:
        for number, kept_mb in enumerate((mb, 1)):
            group.start(
                f"user{number + 1}",
                bench.seat(f"notebook {number}", f"user{number + 1}"),
                device="cuda", threads=1, width=64, kept_mb=kept_mb, seed=number,
            )  # fmt: skip
        group.wait_until_ready()
        holder, taker = group.members
        _ask(taker, "make")
        found: dict[str, list[float]] = {"free": [], "reclaimed": [], "here": [], "restored": []}
        for _ in range(options.repeat):
            found["free"].append(_ask(taker, "fill", mb=mb))
            _ask(taker, "drop")
        _ask(holder, "make")
        for _ in range(options.repeat):
            found["here"].append(_ask(holder, "touch"))
            time.sleep(_IDLE_S)
            found["reclaimed"].append(_ask(taker, "fill", mb=mb))
            _ask(taker, "drop")
            time.sleep(_IDLE_S)
            found["restored"].append(_ask(holder, "touch"))
    return found


def _ask(member: NotebookProcess, do: str, **how: Any) -> float:
    member.tell(do, **how)
    return float(member.answer().get("seconds", 0.0))


def _moved_figures(found: dict[str, list[float]], mb: int) -> list[Figure]:
    free, here = statistics.median(found["free"]), statistics.median(found["here"])
    return [
        plain(f"reclaim {mb} MiB", [each - free for each in found["reclaimed"]], "s"),
        plain(f"restore {mb} MiB", [each - here for each in found["restored"]], "s"),
    ]
