"""Values that kernels trust, looked at before the kernel runs.

On `cpu` public index ops (`index_select`, `gather`, `embedding`) look for themselves and raise;
backward ops do not: an index past the end makes them write past the end. There every guard looks,
and raises. CUDA's kernels trust nearly all values: a wrong one ends the whole context, of public
ops as well (a device-side assertion cannot be survived). There a guard replaces what is wrong by
something harmless, without waiting, and notes on the device that it did; who waits next reads it.

Invariant: a guard acts before the op has touched anything.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from typing import Protocol, TypeAlias

import torch

__all__ = [
    "CountGuard",
    "Guard",
    "IndexGuard",
    "Look",
    "MassGuard",
    "Mender",
    "Noting",
    "RangeGuard",
    "check_range",
    "clamped",
]


class Guard(Protocol):
    """What must hold of the values of one argument."""

    @property
    def argument(self) -> str:
        """The argument's name."""

    @property
    def place(self) -> int:
        """The tensor's place in a list of them, -1 where it is alone."""

    @property
    def error(self) -> str:
        """The exception's type where it does not hold."""

    def wrong(self, values: torch.Tensor) -> torch.Tensor:
        """Where it does not hold."""

    def mended(self, values: torch.Tensor, wrong: torch.Tensor) -> torch.Tensor:
        """Values of which it holds; those that were right are the same."""

    def sentence(self, name: str) -> str:
        """What is wrong with a call of the op of this name."""


#: one look that a guard would make: the op, the argument, its place in a list
Look: TypeAlias = tuple[int, str, int]
#: does what a guard of an index asks for in one launch, with the note's place; None where it cannot
Mender: TypeAlias = Callable[[torch.Tensor, "IndexGuard", torch.Tensor], torch.Tensor | None]


class Noting(Protocol):
    """Where guards note on the device what they met."""

    #: looks that are not needed, for the host knows the values
    proven: frozenset[Look]
    #: one kernel for the ops of a look; None where there is none
    mender: Mender | None

    def place(self, op: int, guard: Guard) -> torch.Tensor:
        """One bool, to be written: whether a value was wrong that this op was given."""


@dataclass(frozen=True, slots=True)
class IndexGuard:
    """Argument `argument` (or its `place`-th tensor) is in [`low`, `high`), or `ignored`.

    `most`: the sum of each row (of lengths) is not larger. `first`, `last`: what stands there.
    `factored`: each row is as a factorization L D L^T leaves its pivots.
    """

    argument: str
    low: int
    high: int
    ignored: int | None = None
    place: int = -1
    most: int | None = None
    first: int | None = None
    last: int | None = None
    factored: bool = False

    @property
    def error(self) -> str:
        """As native torch raises it."""
        return "IndexError"

    @property
    def plain(self) -> bool:
        """Whether its bounds are all that it says."""
        others = self.most is None and self.first is None and self.last is None
        return others and not self.factored

    def outside(self, index: torch.Tensor) -> torch.Tensor:
        """Where it is out of its bounds."""
        wrong = (index < self.low) | (index >= self.high)
        return wrong if self.ignored is None else wrong & (index != self.ignored)

    def wrong(self, index: torch.Tensor) -> torch.Tensor:
        """Where it is so, or not what it must be beside that."""
        wrong = self.outside(index)
        for place, value in ((0, self.first), (-1, self.last)):
            if value is not None:
                wrong[..., place] |= index[..., place] != value
        if self.factored:
            return wrong | _unfactored(index)
        if self.most is None:
            return wrong
        # a row that is too long is wrong as a whole; its sum is one of small numbers
        return wrong | (torch.where(wrong, 0, index).sum(-1, keepdim=True) > self.most)

    def mended(self, index: torch.Tensor, wrong: torch.Tensor) -> torch.Tensor:
        """The least index in its place."""
        if self.factored:  # no row changes its place
            return torch.where(wrong.any(-1, keepdim=True), _own_places(index), index)
        return torch.where(wrong, self.low, index)

    def sentence(self, name: str) -> str:
        """Without the value, which only the device knows."""
        if self.factored:
            return f"{name}: {self.argument} are not those of a factorization."
        if self.plain:
            bounds = f"[{self.low}, {self.high})"
            return f"{name}: {self.argument} holds a value that is not in {bounds}."
        return f"{name}: {self.argument} begin or end at a wrong place, or sum up to too much."


@dataclass(frozen=True, slots=True)
class RangeGuard:
    """Numbers from `low` to `high`, both included, and finite; NaN is none of them."""

    argument: str
    #: what native torch says
    text: str
    low: float = 0.0
    high: float = inf
    place: int = -1
    error: str = "RuntimeError"

    def wrong(self, values: torch.Tensor) -> torch.Tensor:
        """Where a number lies outside."""
        within = values < inf if self.high == inf else values <= self.high
        return ~(within & (values >= self.low))

    def mended(self, values: torch.Tensor, wrong: torch.Tensor) -> torch.Tensor:
        """The least number in its place."""
        return values.masked_fill(wrong, self.low)

    def sentence(self, name: str) -> str:
        """Native torch's."""
        return self.text


@dataclass(frozen=True, slots=True)
class MassGuard:
    """Each row, of numbers that are not below zero, has a sum above zero, and a finite one."""

    argument: str
    text: str
    place: int = -1
    error: str = "RuntimeError"

    def wrong(self, values: torch.Tensor) -> torch.Tensor:
        """Rows as a whole."""
        total = values.sum(-1, keepdim=True)  # in the type in which some kernels add up
        return ~((total > 0) & (total < inf))

    def mended(self, values: torch.Tensor, wrong: torch.Tensor) -> torch.Tensor:
        """All the same in its place."""
        return values.masked_fill(wrong, 1)

    def sentence(self, name: str) -> str:
        """Native torch's."""
        return self.text


@dataclass(frozen=True, slots=True)
class CountGuard:
    """A mask has at most `most` places."""

    argument: str
    most: int
    text: str
    place: int = -1
    error: str = "RuntimeError"

    def wrong(self, values: torch.Tensor) -> torch.Tensor:
        """The mask as a whole."""
        return values.count_nonzero() > self.most

    def mended(self, values: torch.Tensor, wrong: torch.Tensor) -> torch.Tensor:
        """None of its places."""
        return values.masked_fill(wrong, 0)

    def sentence(self, name: str) -> str:
        """Native torch's."""
        return self.text


def _unfactored(pivots: torch.Tensor) -> torch.Tensor:
    """Where pivots are not those of LAPACK's `sytrf` and `hetrf` with the lower triangle.

    These count from 1. A row is exchanged with itself or a later one; two equal negative pivots
    stand for a block of two rows, of which the second is exchanged with itself or a later one. The
    solver walks by the signs, forwards and backwards, and past the end where a pair is torn.
    """
    pivots = pivots.to(torch.int64)
    own = _own_places(pivots)
    paired = pivots < 0
    negatives = paired.cumsum(-1)
    before = torch.where(paired, 0, negatives).cummax(-1).values
    opens = paired & ((negatives - before) % 2 == 1)
    nothing = pivots.new_zeros((*pivots.shape[:-1], 1))
    after = torch.cat([pivots[..., 1:], nothing], -1)
    torn = torch.where(opens, (after != pivots) | (-pivots <= own), pivots < own)
    closes = paired & ~opens  # looked at together with what opens the pair
    return torn & ~closes


def _own_places(pivots: torch.Tensor) -> torch.Tensor:
    return torch.arange(1, pivots.shape[-1] + 1, dtype=pivots.dtype, device=pivots.device)


def check_range(name: str, index: torch.Tensor, guard: Guard) -> None:
    """Raise what the guard says where a value is wrong (waits for the device)."""
    if not index.numel() or index.is_meta:
        return
    if not isinstance(guard, IndexGuard):
        if bool(guard.wrong(index).any()):
            error = IndexError if guard.error == "IndexError" else RuntimeError
            raise error(guard.sentence(name))
        return
    low, high = (int(bound) for bound in torch.aminmax(index))
    if low >= guard.low and high < guard.high and guard.plain:
        return
    wrong = guard.outside(index)
    if bool(wrong.any()):
        value, bounds = int(index[wrong][0]), f"[{guard.low}, {guard.high})"
        raise IndexError(f"{name}: {guard.argument} holds {value}, which is not in {bounds}.")
    if bool(guard.wrong(index).any()):
        if guard.factored:
            raise IndexError(guard.sentence(name))
        if guard.most is None:
            raise IndexError(f"{name}: {guard.argument} begin or end at a wrong place.")
        raise IndexError(f"{name}: {guard.argument} sum up to more than {guard.most}.")


def clamped(
    name: str, values: torch.Tensor, guard: Guard, notes: Noting | None, op: int
) -> torch.Tensor:
    """The values with wrong ones replaced, without waiting for the device, which is noted.

    Where nobody reads notes it looks itself, and raises.
    """
    if not values.numel():
        return values
    if notes is None:
        check_range(name, values, guard)
        return values
    if notes.proven and (op, guard.argument, guard.place) in notes.proven:
        return values
    if isinstance(guard, IndexGuard) and guard.high <= guard.low:
        raise IndexError(f"{name}: {guard.argument} looks into nothing.")
    place = notes.place(op, guard)
    if notes.mender is not None and isinstance(guard, IndexGuard) and guard.plain:
        made = notes.mender(values, guard, place)
        if made is not None:
            return made
    wrong = guard.wrong(values)
    mended = guard.mended(values, wrong)
    torch.any(wrong, out=place)
    return mended
