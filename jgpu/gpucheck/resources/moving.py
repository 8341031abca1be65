"""Whole numbers on the device and on the host, by the same random steps; compared again and again.

    python moving.py HOW SEED STEPS NBYTES

Sums that differ, and how many there were. Tensors are made, changed, dropped, viewed and copied, of
many sizes, up to NBYTES together, with rests in which others may have the memory.
"""

import random
import time
from typing import Any

import place
import torch

PRIME = 65_521


class Pair:
    """A tensor of the device, and the same on the host."""

    def __init__(self, there: torch.Tensor, here: torch.Tensor) -> None:
        self.there, self.here = there, here

    def total(self) -> tuple[int, int]:
        """Both sums."""
        return int(self.there.sum().item()), int(self.here.sum())


def step(pairs: list[Pair], device: torch.device, dice: random.Random, most: int) -> None:
    """Something happens to one of them."""
    what = dice.randrange(5)
    if what == 0 or not pairs:
        count = dice.choice((7, 513, 4096, 100_003, 1 << 18))
        draw = torch.Generator().manual_seed(dice.randrange(1 << 30))
        with place.host():
            here = torch.randint(0, PRIME, (count,), generator=draw)
        pairs.append(Pair(here.to(device), here.clone()))
    elif what == 1:
        one = dice.choice(pairs)
        value = dice.randrange(1, 99)
        for each in (one.there, one.here):
            each.mul_(value).remainder_(PRIME)
    elif what == 2:
        one, other = dice.choice(pairs), dice.choice(pairs)
        count = min(one.here.numel(), other.here.numel())
        pairs.append(
            Pair(
                (one.there[:count] + other.there[-count:]).remainder(PRIME),
                (one.here[:count] + other.here[-count:]).remainder(PRIME),
            )
        )
    elif what == 3:
        one = dice.choice(pairs)
        pairs.append(Pair(one.there.flip(0).clone(), one.here.flip(0).clone()))
    while pairs and sum(each.here.numel() * 8 for each in pairs) > most:
        del pairs[dice.randrange(len(pairs))]


def main(device: torch.device, seed: str, steps: str, nbytes: str) -> dict[str, Any]:
    """All steps."""
    dice = random.Random(int(seed))
    pairs: list[Pair] = []
    wrong, sums = [], 0
    for number in range(int(steps)):
        step(pairs, device, dice, int(nbytes))
        if pairs and number % 3 == 0:
            found, right = dice.choice(pairs).total()
            sums += 1
            if found != right:
                wrong.append(f"step {number}: {found}, and not {right}")
        if number % 20 == 19:
            time.sleep(0.05)  # others may have the memory
    for number, each in enumerate(pairs):
        sums += 1
        if not torch.equal(each.there.cpu(), each.here):
            wrong.append(f"tensor {number} at the end")
    return {"wrong": wrong[:20], "sums": sums}


if __name__ == "__main__":
    place.serve(main)
