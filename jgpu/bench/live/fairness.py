"""Measure fairness: what users get of one lane, whatever they do to get more.

One user trains in four notebooks, another in one. Shares are of device time charged between two
looks at `jgpu status --json`; whoever asks for less than their share is held to what they ask.
"""

import argparse
import os
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

from jgpu.bench.broker import Bench
from jgpu.bench.rig import goals
from jgpu.bench.rig.goals import Figure, at_least, at_most
from jgpu.bench.rig.lanes import imbalance_s, pieces_of
from jgpu.bench.rig.notebooks import Group, NotebookProcess, batch_of
from jgpu.kernelprovider.environment import outer_environment
from jgpu.sched import Limits
from jgpu.wire import asking
from jgpu.wire.messages import QuotasAre, SetQuota

__all__ = ["add_options", "jain", "main", "off_by"]

_MANY, _ONE = "user1", "user2"
_MODELS: Final = (
    "cnn", "mlp", "lstm", "gru", "transformer", "residual", "embedding", "signal",
)  # fmt: skip
#: seconds at both ends of a stretch that are not looked at, and before the first
_EDGE_S: Final = 0.7
#: a latecomer's cells: rest before each, and how much of each is looked at
_REST_S: Final = 0.6
_LATE_S: Final = 1.0


def add_options(parser: argparse.ArgumentParser) -> None:
    """What can be said about it on the command line."""
    goals.add_common(parser, seconds=12.0, repeat=3, target_ms=12.0)
    parser.add_argument(
        "--users", type=int, default=8, help="users with different models (default: 8; 0: none)"
    )


def main(options: argparse.Namespace) -> int:
    """Measure, print, write."""
    figures, more = _two_users(options)
    if options.users:
        found, shares = _many_users(options)
        figures.append(found)
        more["different_models"] = shares
    goals.show("Shares of device time on one lane", figures, options, more=more)
    return 0


# -- one user with four notebooks, one with one ----------------------------------------------


def _two_users(options: argparse.Namespace) -> tuple[list[Figure], dict[str, Any]]:
    batch = batch_of("cnn", options.target_ms, outer_environment(os.environ))
    bench = Bench(device=options.device, threads=1, lanes=1, trace=True)
    with bench, Group() as group:
        for number in range(5):
            user = _MANY if number < 4 else _ONE
            seat = bench.seat(f"notebook {number}", user)
            group.start(f"notebook {number}", seat, model="cnn", batch=batch, **_ON_CUDA)
        group.wait_until_ready()
        repeats = range(options.repeat)
        alone = _stretch(bench, group.members[4:], options.seconds / 2, every=1)[_ONE]
        shares = {
            name: [_stretch(bench, group.members, options.seconds, every=every) for _ in repeats]
            for name, every in (("every tenth", 10), ("every", 1))
        }
        iteration_s = _iteration_s(bench)
        arrivals, users = _arrivals(bench, group.members, options), _users(bench)
        _set_weight(bench, _MANY, 2.0)
        shares["2:1"] = [_stretch(bench, group.members, options.seconds, every=10) for _ in repeats]
    quantum_s = Limits().quantum_of(iteration_s)
    late = [
        imbalance_s(pieces_of(bench.traced, at, at + _LATE_S), users, _ONE) / quantum_s
        for at in arrivals
    ]
    figures = _figures(shares, alone, late)
    return figures, {
        "batch": batch,
        "iteration_ms": 1e3 * iteration_s,
        "share_of_one_alone": alone,
        "shares": shares,
        "latecomer_quanta": late,
    }


_ON_CUDA: Final = {"device": "cuda", "threads": 1}


def _figures(
    shares: Mapping[str, Sequence[Mapping[str, float]]], alone: float, late: Sequence[float]
) -> list[Figure]:
    equal, double = {_MANY: 1.0, _ONE: 1.0}, {_MANY: 2.0, _ONE: 1.0}
    asked = {_MANY: 1.0, _ONE: alone}

    def off(name: str, weights: Mapping[str, float], asked: Mapping[str, float]) -> list[float]:
        return [100 * off_by(found, weights, asked) for found in shares[name]]

    return [
        at_most("off equal, loss read every tenth", off("every tenth", equal, {}), 2.0, "%"),
        at_most("off equal, loss read at each", off("every", equal, asked), 5.0, "%"),
        at_most("off 2:1, loss read every tenth", off("2:1", double, {}), 2.0, "%"),
        at_most("latecomer: furthest from equal", late, 5.0, "quanta"),
    ]


def off_by(
    found: Mapping[str, float], weights: Mapping[str, float], asked: Mapping[str, float]
) -> float:
    """The most by which a user's part of what was used differs from their due, as a part of it.

    What is due is max-min: `asked` says, as parts of the device, what users ask who ask for less.
    """
    used = sum(found.values())
    due, left, weight = {}, 1.0, sum(weights.values())
    for user in sorted(weights, key=lambda each: asked.get(each, 1.0) / weights[each]):
        due[user] = min(asked.get(user, 1.0), left * weights[user] / weight)
        left -= due[user]
        weight -= weights[user]
    return max(abs(found[user] / used / due[user] - 1) for user in weights)


def _stretch(
    bench: Bench, members: Sequence[NotebookProcess], seconds: float, *, every: int
) -> dict[str, float]:
    """Device time of each user as a part of the time that passed, while all of these train."""
    for member in members:
        member.tell("train", seconds=seconds + 2 * _EDGE_S, every=every)
    time.sleep(_EDGE_S)
    before, began = bench.device_seconds(), time.monotonic()
    time.sleep(seconds)
    after, ended = bench.device_seconds(), time.monotonic()
    for member in members:
        member.answer()
    gained = {user: after[user] - before.get(user, 0.0) for user in after}
    return {user: used / (ended - began) for user, used in gained.items() if used > 0}


def _iteration_s(bench: Bench) -> float:
    rows = [row for row in bench.status().sessions if row.iterations]
    return float(sum(row.device_seconds / row.iterations for row in rows) / len(rows))


def _users(bench: Bench) -> dict[int, str]:
    return {row.id: row.user for row in bench.status().sessions}


def _arrivals(
    bench: Bench, members: Sequence[NotebookProcess], options: argparse.Namespace
) -> list[float]:
    """When the one came who rested, while the others trained all the time."""
    *others, late = members
    count = max(2, 2 * options.repeat)
    each_s = _LATE_S + _REST_S + 0.4
    for member in others:
        member.tell("train", seconds=count * each_s + 2 * _EDGE_S)
    time.sleep(_EDGE_S)
    found = []
    for _ in range(count):
        time.sleep(_REST_S)
        late.tell("train", seconds=_LATE_S + 0.4)
        found.append(late.answer()["begin"])
    for member in others:
        member.answer()
    return found


def _set_weight(bench: Bench, user: str, weight: float) -> None:
    request = SetQuota(f"user:{user}", (("weight", str(weight)),))
    asking.ask_for(bench.address, request, QuotasAre)


# -- users with different models --------------------------------------------------------------


def _many_users(options: argparse.Namespace) -> tuple[Figure, list[dict[str, float]]]:
    environ = outer_environment(os.environ)
    models = [_MODELS[k % len(_MODELS)] for k in range(options.users)]
    batches = {
        model: batch_of(model, options.target_ms, environ) for model in dict.fromkeys(models)
    }
    bench = Bench(device=options.device, threads=1, lanes=1)
    with bench, Group() as group:
        for number, model in enumerate(models):
            name = f"user{number + 1}"
            group.start(name, bench.seat(name, name), model=model, batch=batches[model], **_ON_CUDA)
        group.wait_until_ready()
        shares = [
            _stretch(bench, group.members, options.seconds, every=10) for _ in range(options.repeat)
        ]
    indices = [jain(list(found.values())) for found in shares]
    return at_least(f"Jain's index, {options.users} users, 8 models", indices, 0.99), shares


def jain(shares: Sequence[float]) -> float:
    """Jain's index of fairness (Jain, Chiu and Hawe, 1984): 1 where all have the same."""
    return sum(shares) ** 2 / (len(shares) * sum(share * share for share in shares))
