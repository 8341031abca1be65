"""The executor's form of a program: checked steps over slots, and what follows from them.

A plan is what checking leaves: every step has its op, its bound arguments, the slots it makes
with their claimed geometry, what to guard and what to zero. Compiler and interpreter both work
from it and name variables alike: `s<slot>` is a fresh slot's tensor as claimed (or an input's
base), `v<n>` a view.

A plan is frozen; what runs teach is kept beside it.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch

from jgpu.broker.executor.programs.checking.arguments import Bound, Draw, Many, Ref
from jgpu.broker.executor.programs.checking.guards import Guard, IndexGuard, Look
from jgpu.broker.executor.programs.checking.ops import OpSchema
from jgpu.broker.executor.programs.geometry import ViewSpec
from jgpu.broker.executor.programs.precautions import Precaution
from jgpu.broker.executor.programs.precautions.sizes import Rule as SizeRule
from jgpu.wire.program import NO_SLOT, Flags

__all__ = ["PlanStep", "ProgramPlan", "Provable", "draws", "mask_bits"]


@dataclass(frozen=True, slots=True)
class PlanStep:
    """One op, checked."""

    index: int
    info: OpSchema
    bound: Bound
    refs: tuple[Ref, ...]
    #: per tensor return the fresh slot it fills, or NO_SLOT
    outs: tuple[int, ...]
    #: per tensor return its claimed geometry where it fills a slot
    claims: tuple[ViewSpec | None, ...]
    #: per tensor return whether it shares an older slot's storage
    aliases: tuple[bool, ...]
    #: what it returns depends on data, so it is compared with the claim at every run
    dynamic: bool = False
    #: uninitialised: fill with zeros after the call
    zeroed: bool = False
    #: slots whose storage has to have so many bytes before the call, the new ones zero
    grows: tuple[tuple[int, int], ...] = ()
    #: tensors to look at before the call
    guards: tuple[Guard, ...] = ()
    #: called instead of the op, which some values would keep from returning
    precaution: Precaution | None = None
    #: how many bytes it takes, where the data decide
    size: SizeRule | None = None
    #: its launch waits for what is on the stream, on a device where ops run ahead
    waits: bool = False
    #: this op overwrites the uninitialised slot that an earlier step left as it was
    overwrites: int = NO_SLOT

    @property
    def call(self) -> Callable[..., Any]:
        """What takes the arguments in the schema's order."""
        return self.precaution or self.info.call


@dataclass(frozen=True, slots=True)
class Provable:
    """A look at an input, which is not needed where its bytes are known to be right."""

    slot: int
    dtype: torch.dtype
    guard: IndexGuard
    look: Look


@dataclass(frozen=True)
class ProgramPlan:
    """A checked program."""

    inputs: int
    fresh: int
    params: tuple[str, ...]
    flags: Flags
    steps: tuple[PlanStep, ...]
    #: the program's views: spec, and the run parameter with the offset or -1
    views: tuple[tuple[ViewSpec, int], ...]
    #: smallest bytes of each input slot
    least_bytes: tuple[int, ...]
    #: bytes of each fresh slot; 0 where it shares an older storage
    slot_bytes: tuple[int, ...]
    #: input slots that a step may resize
    resized: tuple[int, ...]
    #: bytes of each of these after it, as far as they are foretold
    resized_bytes: tuple[int, ...]
    #: slots (any) whose views are private because a step may resize them
    private: frozenset[int]
    #: (slot, view) -> variable name
    names: dict[tuple[int, int], str] = field(default_factory=dict)

    @cached_property
    def last_use(self) -> tuple[int, ...]:
        """Per slot the index of the last step that reads, writes or makes it; -1 for none."""
        last = [-1] * (self.inputs + self.fresh)
        for step in self.steps:
            for ref in step.refs:
                last[ref.slot] = step.index
            for slot in step.outs:
                if slot != NO_SLOT:
                    last[slot] = step.index
        return tuple(last)

    @cached_property
    def written(self) -> frozenset[int]:
        """Input slots that a step may write, be it through a slot that shares their storage."""
        if any(any(step.aliases) for step in self.steps):
            return frozenset(range(self.inputs))
        return frozenset(
            ref.slot
            for step in self.steps
            for ref in step.refs
            if ref.written and ref.slot < self.inputs
        )

    @cached_property
    def changed(self) -> tuple[int, ...]:
        """Input slots of whose bytes nothing is known after a run."""
        return tuple(sorted(self.written.union(self.resized)))

    @cached_property
    def provable(self) -> tuple[Provable, ...]:
        """Looks at inputs that no step writes, as indices that lie row by row.

        What stands for any other index lies otherwise than the index, and what is made of the two
        may, too: runs would differ.
        """
        found = []
        for step in self.steps:
            nodes = dict(zip((a.name for a in step.info.arguments), step.bound, strict=True))
            for guard in step.guards:
                node = nodes[guard.argument]
                if isinstance(node, Many) and guard.place >= 0:
                    node = node.nodes[guard.place]
                if not isinstance(node, Ref) or not isinstance(guard, IndexGuard):
                    continue
                spec = self.views[node.view][0]
                is_input = node.slot < self.inputs and node.slot not in self.changed
                if is_input and guard.plain and spec.in_rows:
                    look = step.index, guard.argument, guard.place
                    found.append(Provable(node.slot, spec.dtype, guard, look))
        return tuple(found)

    @cached_property
    def first_write(self) -> tuple[int, ...]:
        """Per input slot the index of the first step that may write it; `len(steps)` for none.

        A slot that shares an older one's storage counts as any of those that its step was given.
        """
        first = [len(self.steps)] * self.inputs
        shared: dict[int, frozenset[int]] = {}

        def inputs_of(slot: int) -> frozenset[int]:
            return frozenset({slot}) if slot < self.inputs else shared.get(slot, frozenset())

        for step in self.steps:
            for ref in step.refs:
                for slot in inputs_of(ref.slot) if ref.written else ():
                    first[slot] = min(first[slot], step.index)
            if any(step.aliases):
                given = frozenset().union(*(inputs_of(ref.slot) for ref in step.refs))
                shared.update((slot, given) for slot in step.outs if slot != NO_SLOT)
        return tuple(first)

    @cached_property
    def last_write(self) -> tuple[int, ...]:
        """Per fresh slot (counted from 0) the index of the last step that may write it."""
        last = [len(self.steps) - 1] * self.fresh
        if any(any(step.aliases) for step in self.steps):
            return tuple(last)
        for step in self.steps:
            made = (slot for slot in step.outs if slot != NO_SLOT)
            for slot in (*made, *(ref.slot for ref in step.refs if ref.written)):
                if slot >= self.inputs:
                    last[slot - self.inputs] = step.index
        return tuple(last)

    @cached_property
    def exact(self) -> tuple[ViewSpec | None, ...]:
        """Per fresh slot what a compiled run makes, storage included; None where it is looked at.

        Such a slot has a storage of its own, no larger than its claim says, and is compared with
        the claim at each run. One that is zeroed may have holes, one that is resized any size, and
        of one without elements nobody compares the layout.
        """
        found: list[ViewSpec | None] = [None] * self.fresh
        for step in self.steps:
            for slot, claim, alias in zip(step.outs, step.claims, step.aliases, strict=True):
                if slot == NO_SLOT or slot in self.private or alias or step.zeroed:
                    continue
                if claim is not None and claim.nbytes and not claim.bits:
                    found[slot - self.inputs] = claim
        for slot in (slot for step in self.steps for slot, _ in step.grows):
            if slot >= self.inputs:
                found[slot - self.inputs] = None
        return tuple(found)

    @cached_property
    def generators(self) -> tuple[int, ...]:
        """Indices of the session's generators that the program draws from."""
        return tuple(sorted({i for step in self.steps for i in draws(step)}))

    @cached_property
    def taken(self) -> tuple[tuple[int, int, str], ...]:
        """(slot, view, name) of the input views that a run takes before the first op."""
        return tuple(
            (slot, view, name)
            for (slot, view), name in self.names.items()
            if slot < self.inputs and slot not in self.private
        )

    @cached_property
    def variables(self) -> dict[int, tuple[str, ...]]:
        """All variable names by slot."""
        found: dict[int, list[str]] = {}
        for (slot, _), name in self.names.items():
            found.setdefault(slot, [f"s{slot}"]).append(name)
        return {slot: tuple(names) for slot, names in found.items()}

    @cached_property
    def bases(self) -> tuple[int, ...]:
        """Input slots that a run hands over whole, because views of them are private."""
        return tuple(slot for slot in sorted(self.private) if slot < self.inputs)

    def output_bytes(self, live: bytes) -> int:
        """Bytes of the fresh slots whose bit is set."""
        return sum(size for size, bit in zip(self.slot_bytes, self.live(live), strict=True) if bit)

    def transient_bytes(self, live: bytes) -> int:
        """Most bytes of fresh slots at once; slots that are not live end with their last use."""
        kept = self.live(live)
        ends: dict[int, int] = {}
        for k, size in enumerate(self.slot_bytes):
            if not kept[k]:
                at = self.last_use[self.inputs + k]
                ends[at] = ends.get(at, 0) + size
        now = most = 0
        for step in self.steps:
            now += sum(self.slot_bytes[s - self.inputs] for s in step.outs if s != NO_SLOT)
            most = max(most, now)
            now -= ends.get(step.index, 0)
        return most

    def live(self, mask: bytes) -> list[bool]:
        """One flag a fresh slot."""
        return mask_bits(mask, self.fresh)


def draws(step: PlanStep) -> tuple[int, ...]:
    """Generators that a step draws from."""
    given = tuple(node.index for node in step.bound if isinstance(node, Draw))
    return given or ((0,) if step.info.seeded else ())


def bits(flags: bytes, count: int) -> tuple[int, ...]:
    """Indices below `count` whose bit is set, least significant bit first."""
    number = int.from_bytes(flags, "little") & ((1 << count) - 1)
    found = []
    while number:
        lowest = number & -number
        found.append(lowest.bit_length() - 1)
        number ^= lowest
    return tuple(found)


def mask_bits(mask: bytes, count: int) -> list[bool]:
    """The first `count` bits of a mask, least significant first; missing ones are 0."""
    number = int.from_bytes(mask, "little")
    return [bool(number >> k & 1) for k in range(count)]
