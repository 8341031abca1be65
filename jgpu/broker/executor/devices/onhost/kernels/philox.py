"""Random numbers as a GPU draws them: from a seed and an offset alone, by Philox4x32-10.

A random kernel takes seed and offset of its generator when it is launched; the generator's offset
then moves on by what the kernel may need. Every thread reads a sequence of its own: thread t reads
blocks of four numbers of 32 bits at counter (offset / 4 + k, t), k = 0, 1, ... So what is drawn
does not depend on when the kernel runs, or on what runs beside it.

The function is that of Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (SC 2011),
section 4.2; how threads map to counters follows cuRAND's `curand_init(seed, thread, offset)`.
"""

import math
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

__all__ = ["LANES", "Philox", "normals", "normals64", "philox", "uniforms", "uniforms64"]

#: numbers of 32 bits in a block, which is also how far an offset moves on for one block
LANES: Final = 4
_ROUNDS: Final = 10
_MULTIPLIERS: Final = (0xD2511F53, 0xCD9E8D57)
_WEYL: Final = (0x9E3779B9, 0xBB67AE85)
_LOW: Final = 0xFFFFFFFF
_TWO32, _TWO53 = 2.0**-32, 2.0**-53


def philox(counter: Tensor, key: tuple[int, int]) -> Tensor:
    """Philox4x32-10 of counters, `[..., 4]` of int64 that hold 32 bits each; alike shaped."""
    first, second, third, fourth = counter.unbind(-1)
    low, high = key
    for _ in range(_ROUNDS):
        # the product wraps at 64 bits, of which all are wanted
        left, right = first * _MULTIPLIERS[0], third * _MULTIPLIERS[1]
        first, second, third, fourth = (
            _upper(right) ^ second ^ low,
            right & _LOW,
            _upper(left) ^ fourth ^ high,
            left & _LOW,
        )
        low, high = (low + _WEYL[0]) & _LOW, (high + _WEYL[1]) & _LOW
    return torch.stack((first, second, third, fourth), -1)


def _upper(product: Tensor) -> Tensor:
    return (product >> 32) & _LOW


@dataclass(frozen=True, slots=True)
class Philox:
    """Where one launch draws from: its generator's seed and offset at that time."""

    seed: int
    #: a multiple of `LANES`
    offset: int

    def __post_init__(self) -> None:
        if self.offset % LANES or self.offset < 0:
            raise ValueError(f"An offset is a multiple of {LANES}, not {self.offset}.")

    def after(self, increment: int) -> "Philox":
        """What the next launch draws from."""
        return Philox(self.seed, self.offset + increment)

    def blocks(self, threads: Tensor, turns: Tensor | int) -> Tensor:
        """Numbers of 32 bits, `[..., 4]`: what each thread reads at its `turns`-th block.

        Both are of int64 and are broadcast against each other.
        """
        first = torch.as_tensor(turns, dtype=torch.int64) + self.offset // LANES
        first, threads = torch.broadcast_tensors(first, threads)
        words = (first & _LOW, _upper(first), threads & _LOW, _upper(threads))
        return philox(torch.stack(words, -1), (self.seed & _LOW, (self.seed >> 32) & _LOW))


def uniforms(blocks: Tensor) -> Tensor:
    """Four numbers of float32 in (0, 1] a block, `[..., 4]`."""
    return blocks.to(torch.float32).mul_(_TWO32).add_(_TWO32 / 2)


def uniforms64(blocks: Tensor) -> Tensor:
    """Two numbers of float64 in (0, 1] a block, `[..., 2]`."""
    return _mixed(blocks).to(torch.float64).mul_(_TWO53).add_(_TWO53 / 2)


def normals(blocks: Tensor) -> Tensor:
    """Four normally distributed numbers of float32 a block, by Box and Muller, `[..., 4]`."""
    pairs = blocks.to(torch.float32).unflatten(-1, (2, 2))
    radius = (pairs[..., 0] * _TWO32 + _TWO32 / 2).log().mul_(-2).sqrt_()
    turn = 2 * math.pi * _TWO32
    angle = pairs[..., 1] * turn + turn / 2
    return torch.stack((radius * angle.sin(), radius * angle.cos()), -1).flatten(-2)


def normals64(blocks: Tensor) -> Tensor:
    """Two normally distributed numbers of float64 a block, `[..., 2]`."""
    radius, angle = _mixed(blocks).to(torch.float64).unbind(-1)
    radius = (radius * _TWO53 + _TWO53 / 2).log().mul_(-2).sqrt_()
    angle = (angle * (2 * _TWO53) + _TWO53).mul_(math.pi)
    return torch.stack((radius * angle.sin(), radius * angle.cos()), -1)


def _mixed(blocks: Tensor) -> Tensor:
    """Two numbers of 53 bits a block."""
    pairs = blocks.unflatten(-1, (2, 2))
    mixed: Tensor = pairs[..., 0] ^ (pairs[..., 1] << 21)
    return mixed
