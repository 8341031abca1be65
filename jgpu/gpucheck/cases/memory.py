"""Memory: what is full, what is moved, what is shared by lanes, and what copies cost."""

from typing import Any, Final

from jgpu.gpucheck.stand import Stand

__all__ = ["full", "moves", "transfers"]

_PINNED_GB_S: Final = 45.0
_ON_HOST: Final = 256 << 20


def full(stand: Stand) -> None:
    """Out of memory on the right line; libraries that find none wait for it; all goes on."""
    memory = _ON_HOST if stand.on_host else 4 << 30
    with stand.broker(memory=memory, lanes=2) as place:
        # a neighbour whose tensors may go to the host
        other = place.start("filling", "hold", user="user2")
        held = other.ask("hold")
        found = place.seat("filling", "fill", user="user1")
        kept = other.ask("look")
        other.end()
        after = place.device()
    for name, each in found.items():
        stand.check(name, each is True, each)
    stand.same("a neighbour's tensors", kept["digest"], held["digest"])
    stand.same("executors that ended", after.restarts, 0)


def moves(stand: Stand) -> None:
    """Four sessions share lanes, move, free and are spilled; every step's sums are right."""
    memory = 128 << 20 if stand.on_host else 2 << 30
    steps, nbytes = (40, 12 << 20) if stand.on_host else (400, 200 << 20)
    with stand.broker(memory=memory, lanes=4) as place:
        users = [f"user{k}" for k in range(1, 5)]
        programs = [
            place.start("moving", seed, steps, nbytes, user=user) for seed, user in enumerate(users)
        ]
        told = [program.result() for program in programs]
        after = place.device()
    for user, found in zip(users, told, strict=True):
        stand.same(f"{user}: wrong sums", found["wrong"], [])
        stand.figure(f"{user}: sums", found["sums"])
    stand.same("executors that ended", after.restarts, 0)


def transfers(stand: Stand) -> None:
    """Bytes of many sizes, there and back; how fast the large ones are."""
    most = 4 << 20 if stand.on_host else 1 << 30
    more: dict[str, Any] = {} if stand.on_host else {"memory": 6 << 30}
    with stand.broker(**more) as place:
        found = place.seat("copying", most)
    right = stand.run("copying", most)
    stand.same("sizes whose bytes came back as others", found["wrong"], [])
    for way in ("there", "back"):
        stand.figure(f"{way}, shared", found[way], "GB/s", at_least=_PINNED_GB_S / 3)
        stand.figure(f"{way}, directly from pinned memory", right[way], "GB/s")
