"""The same bits as without jgpu: models, switches, random numbers, alone and among others."""

import tempfile
import time
from pathlib import Path
from typing import Any, Final

from jgpu.errors import BrokerRefused
from jgpu.gpucheck.stand import CaseBroker, SkipCase, Stand
from jgpu.wire.asking import ask_for
from jgpu.wire.messages import Done, Evict

__all__ = [
    "attention",
    "dense",
    "first_difference",
    "flags",
    "images",
    "mixed",
    "neighbours",
    "random",
    "recurrent",
]

_STEPS: Final = 10
_STEPS_ON_HOST: Final = 4
_EVICT_S: Final = 0.5


def dense(stand: Stand) -> None:
    """Linear layers, norms, dropout, embeddings, optimizers."""
    _models(stand, "dense")


def images(stand: Stand) -> None:
    """Convolutions and batch norm in both layouts."""
    _models(stand, "images")


def recurrent(stand: Stand) -> None:
    """cuDNN's recurrent layers."""
    _models(stand, "recurrent")


def attention(stand: Stand) -> None:
    """Attention with a mask, causal, and with dropout; forward and backward."""
    _models(stand, "attention")


def mixed(stand: Stand) -> None:
    """Halves, autocast, and scaled gradients."""
    if stand.on_host:
        raise SkipCase("Torch casts for CUDA only where a tensor says that it is there.")
    _models(stand, "mixed")


def first_difference(stand: Stand) -> None:
    """The first op of a step whose results differ from those without jgpu."""
    for name, text in differences(stand, "attention" if stand.on_host else "mixed").items():
        stand.check(name, holds=not text, text=text)


def differences(stand: Stand, group: str, changed: str = "") -> dict[str, str]:
    """Return the first difference of each model of a group, "" where there is none.

    With `changed`, the first result of that op is changed without jgpu.
    """
    with tempfile.TemporaryDirectory() as folder, stand.broker() as place:
        native, shared = (str(Path(folder, name)) for name in ("native", "shared"))
        stand.run("operations", group, stand.scale, native, changed)
        place.seat("operations", group, stand.scale, shared)
        found: dict[str, str] = stand.run("differences", native, shared)
    return found


def _models(stand: Stand, group: str) -> None:
    """Natively twice, shared twice in one broker: what repeats natively is the same shared."""
    arguments = (group, stand.scale, _STEPS_ON_HOST if stand.on_host else _STEPS)
    with stand.broker() as place:
        first = place.start("identity", *arguments)
        again = place.start("identity", *arguments, user="user2")
        right = stand.run("identity", *arguments)
        shared = first.result(), again.result()
    _compare(stand, right, _repeats(stand, right, "identity", *arguments), shared)


def _repeats(stand: Stand, right: dict[str, Any], *program: Any) -> set[str]:
    """What a second run without jgpu gives again; told where it does not."""
    anew = stand.run(*program)
    repeats = {name for name in right if anew[name] == right[name]}
    for name in right.keys() - repeats:
        stand.note(f"{name}: it differs from run to run without jgpu, too")
    return repeats


def _compare(
    stand: Stand, right: dict[str, Any], repeats: set[str], shared: tuple[dict[str, Any], ...]
) -> None:
    for name in right:
        if "error" in right[name]:
            stand.check(name, holds=False, text=f"without jgpu: {right[name]['error']}")
            continue
        for turn, found in enumerate(shared, 1):
            if "error" in found[name]:
                stand.check(f"{name}, {turn}", holds=False, text=found[name]["error"])
            elif name in repeats:
                text = _difference(found[name], right[name])
                stand.check(f"{name}, {turn}", holds=not text, text=text)


def _difference(found: Any, right: Any) -> str:
    """The first thing that differs, in words."""
    if found == right:
        return ""
    if not isinstance(right, dict):
        return f"{found}, and not {right}"
    for step, (one, other) in enumerate(
        zip(found.get("losses", ()), right.get("losses", ()), strict=True)
    ):
        if one != other:
            return f"the loss of step {step} is {one}, and not {other}"
    return f"other {' and '.join(name for name in right if found[name] != right[name])}"


def neighbours(stand: Stand) -> None:
    """The same beside three others, while all of its memory goes to the host and comes back."""
    arguments = ("dense", stand.scale, 3 * _STEPS)
    right = stand.run("identity", *arguments)
    repeats = _repeats(stand, right, "identity", *arguments)
    with stand.broker(lanes=3) as place:
        others = [place.start("busy", user=f"user{k}") for k in (2, 3, 4)]
        for other in others:
            other.ask("go")
        own = place.start("identity", *arguments, user="user1")
        moves = _evict_until_over(place, own)
        _compare(stand, right, repeats, (own.result(),))
        for k, other in enumerate(others):
            stand.check(f"neighbour {k}", other.ask("end")["same"], "its sums are others")
            other.end()
    stand.figure("times its memory went to the host", moves)


def _evict_until_over(place: CaseBroker, own: Any) -> int:
    """Send the session's memory away again and again; how often it went."""
    moves = 0
    while own.process.poll() is None:
        for session in place.bench.status().sessions:
            if session.user == "user1" and session.resident_bytes:
                try:
                    ask_for(place.bench.address, Evict(session.id, True), Done)
                except BrokerRefused:
                    if any(each.id == session.id for each in place.bench.status().sessions):
                        raise
                    continue  # it has ended since
                moves += 1
        time.sleep(_EVICT_S)
    return moves


def flags(stand: Stand) -> None:
    """Each switch of torch that changes arithmetic: read back, and computed with."""
    found = stand.run("switches", stand.scale, CUBLAS_WORKSPACE_CONFIG=":4096:8")
    anew = stand.run("switches", stand.scale, CUBLAS_WORKSPACE_CONFIG=":4096:8")
    with stand.broker() as place:
        shared = place.seat("switches", stand.scale)
    for name, right in found.items():
        if right == anew[name]:
            stand.same(name, shared[name], right)
        else:
            stand.note(f"{name}: it differs from run to run without jgpu, too")
    if not stand.on_host:
        changed = [name for name, right in found.items() if right != found["nothing"]]
        stand.note(f"switches that change a result here: {', '.join(changed) or 'none'}")


def random(stand: Stand) -> None:
    """Every kind of draw, by the default generator and by one's own, and the states between."""
    right = stand.run("draws")
    with stand.broker() as place:
        both = [place.start("draws", user=user) for user in ("user1", "user2")]
        for turn, program in enumerate(both, 1):
            found = program.result()
            for name, digest in right.items():
                stand.same(f"{name}, session {turn}", found.get(name), digest)
