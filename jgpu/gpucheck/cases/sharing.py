"""Time: what sharing costs, and how it is shared. Nothing else may run beside these cases."""

import statistics
from contextlib import ExitStack
from typing import Any, Final

from jgpu.bench.figures import ratio_of
from jgpu.bench.rig.goals import percentile
from jgpu.bench.rig.lanes import pieces_of, switches_of
from jgpu.gpucheck.stand import CaseBroker, CaseProgram, Stand, together

__all__ = ["events", "fairness", "overhead", "pump", "waits"]

#: model, native milliseconds of a step, and what of that a shared step may take
_STEPS: Final = (("mlp", 1.0, 1.25), ("cnn", 10.0, 1.05))
_MOST_BATCH: Final = 1 << 17
_LAUNCHES: Final = 120_000
_ITEM_US: Final = 40.0
_STALL_US: Final = 5000.0


def overhead(stand: Stand) -> None:
    """A step of about 1 ms and one of about 10 ms against native, in turn."""
    pairs = 2 if stand.on_host else 12
    with stand.broker(lanes=1) as place, ExitStack() as ending:
        shared = _stepping(place, ending)
        native = stand.start("stepping")
        ending.callback(native.end)
        for model, target_ms, goal in _STEPS:
            batch = 32 if stand.on_host else _batch(native, model, target_ms)
            same = [each.ask(f"make {model} {batch}")["loss"] for each in (native, shared)]
            stand.same(f"{model}: the loss after 15 steps", same[1], same[0])
            _paired(stand, native, shared, f"{model}, {target_ms:g} ms", pairs, goal)


def _batch(native: CaseProgram, model: str, target_ms: float) -> int:
    """The batch at which a native step takes about so long; no less than a launch-bound one's."""
    batch = 64
    while batch < _MOST_BATCH:
        if 1e3 * native.ask(f"make {model} {batch}")["s"] >= target_ms:
            return batch
        batch *= 2
    return batch


def _paired(
    stand: Stand, native: CaseProgram, shared: CaseProgram, name: str, pairs: int, goal: float
) -> None:
    found = []
    for turn in range(pairs):
        both = (native, shared) if turn % 2 else (shared, native)
        took = {id(each): each.ask("block 20")["s"] for each in both}
        found.append((took[id(native)], took[id(shared)]))
    ratio = ratio_of(found)
    stand.figure(f"{name}: native", 1e3 * statistics.median(one for one, _ in found), "ms")
    stand.figure(f"{name}: shared / native", ratio.median, at_most=goal)
    stand.figure(f"{name}: 95 % up to", ratio.high)
    # a loss that is read in each step is told unasked: reading it is to cost next to nothing
    unread = statistics.median(shared.ask("stream 20")["s"] for _ in range(3))
    read = statistics.median(one for _, one in found)
    stand.figure(f"{name}: what reading the loss adds", 1e6 * (read - unread), "us", at_most=100)


def fairness(stand: Stand) -> None:
    """Two users, one of them with two notebooks: time is halved, and switches are short."""
    seconds = 3.0 if stand.on_host else 6.0
    with stand.broker(lanes=1, trace=True) as place, ExitStack() as ending:
        programs = [_stepping(place, ending, user) for user in ("user1", "user2", "user2")]
        for each in programs:
            each.ask("make cnn 256")
        before = place.bench.device_seconds()
        together(programs, f"train {seconds}")
        after = place.bench.device_seconds()
    had = {user: after[user] - before[user] for user in ("user1", "user2")}
    stand.check("both were charged", min(had.values()) > 0, had)
    stand.figure(
        "the larger part of the smaller", max(had.values()) / min(had.values()), at_most=1.1
    )
    # from the end of one session's work, as the host saw it, to the next one's launch: 0 if ahead
    switches = [
        1e3 * max(0.0, each.seconds)
        for each in switches_of(pieces_of(place.bench.traced))
        if each.waited_for
    ]
    stand.check("sessions took turns", len(switches) > 2, f"{len(switches)} switches")
    stand.figure("switch: median", percentile(switches, 50), "ms", at_most=0.5)
    stand.figure("switch: p99", percentile(switches, 99), "ms", at_most=2.0)


def waits(stand: Stand) -> None:
    """A value that is asked for, alone, and beside somebody whose ops make the host wait."""
    count = 50 if stand.on_host else 2000
    with stand.broker(lanes=2) as place, ExitStack() as ending:
        own, other = (_stepping(place, ending, user) for user in ("user1", "user2"))
        own.ask(f"items {count}")
        _items(stand, "alone", own.ask(f"items {count}"), _ITEM_US)
        for name, line in (
            ("beside nonzero and solvers", "lookups 3"),
            ("beside convolutions that are new", "cold 12"),
        ):
            found, _ = _at_once(own, f"items {count}", other, line)
            _items(stand, name, found, _STALL_US)
        native = stand.start("stepping")
        ending.callback(native.end)
        native.ask(f"items {count}")
        _items(stand, "native", native.ask(f"items {count}"), None)


def _items(stand: Stand, name: str, found: Any, goal_us: float | None) -> None:
    alone = name == "alone"
    stand.figure(f"{name}: median", found["median"], "us", at_most=goal_us if alone else None)
    stand.figure(f"{name}: p99", found["p99"], "us", at_most=None if alone else goal_us)


def _at_once(own: CaseProgram, asked: str, other: CaseProgram, beside: str) -> tuple[Any, Any]:
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(1) as thread:
        answer = thread.submit(other.ask, beside)
        return own.ask(asked), answer.result()


def pump(stand: Stand) -> None:
    """Launches a second of small ops, of one session and of several."""
    rounds = 1 if stand.on_host else 8
    for lanes in (1, 2) if stand.on_host else (1, 2, 4):
        with stand.broker(lanes=lanes) as place, ExitStack() as ending:
            programs = [_stepping(place, ending, f"user{k}") for k in range(lanes)]
            for ops in (20, 100) if stand.on_host else (100, 900):
                together(programs, f"chain {ops} {rounds}")
                rate = sum(each["ops"] for each in together(programs, f"chain {ops} {rounds}"))
                goal = _LAUNCHES if lanes == 1 else None
                stand.figure(f"{ops} ops, {lanes} lanes", rate, "ops/s", at_least=goal)


def events(stand: Stand) -> None:
    """Two events around products of matrices tell the time that native ones tell."""
    steps = 2 if stand.on_host else 30
    with stand.broker(lanes=1) as place, ExitStack() as ending:
        shared = _stepping(place, ending)
        found = [shared.ask(f"events {steps}")["ms"] for _ in range(2)][-1]
    stand.check("a time is told", found > 0, found)
    stand.figure("shared", found, "ms")
    if not stand.on_host:
        native = stand.start("stepping")
        right = [native.ask(f"events {steps}")["ms"] for _ in range(2)][-1]
        native.end()
        stand.check("within 5 % of native", abs(found / right - 1) < 0.05, f"{found} of {right} ms")


def _stepping(place: CaseBroker, ending: ExitStack, user: str = "user1") -> CaseProgram:
    program = place.start("stepping", user=user)
    ending.callback(program.end)
    return program
