"""Programs by what names them: a cut of the log is one that is known, or is written here.

`ProgramRecorder.take` canonicalises what was recorded: buffers become slots in order of first use,
offsets of views into older buffers become run parameters, and the sequence of plans and slots is
looked up (`taking`). A sequence seen before costs a dictionary look-up; a new one is built into a
`Program`, encoded and hashed.

What garbage collection decided is left out of the program: it is read after the log has dropped
its references, from what still holds a run's outputs, and from the list that the finalizers of
older buffers append to.
"""

from array import array
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import CodeType
from typing import Any, Final

import msgspec

from jgpu.device.geometry import InternedGeometry
from jgpu.device.recording.cuts.taking import Entry, take
from jgpu.device.recording.infer import OpPlan, TensorRef
from jgpu.device.tensor import BufferHandle
from jgpu.wire import limits
from jgpu.wire import program as wire

__all__ = ["Compiled", "Cut", "ProgramRecorder"]

#: Most bytes of a program, so that a frame has room for it.
_MOST_BYTES: Final = limits.MAX_FRAME_BYTES - 1024


@dataclass(slots=True)
class Compiled:
    """A program known by its sequence: hash, bytes, and whether the executor has it."""

    hash: bytes
    data: bytes
    fresh: int
    #: (plan, number of the op) in order, for corrections that the executor reports
    plans: tuple[OpPlan, ...]
    #: input slots that an op may write
    written: tuple[int, ...] = ()
    #: fresh slots whose values the host reads, each with the runs since it did (see `wanted`)
    wanted: dict[int, int] = field(default_factory=dict)
    #: connection on which it was defined
    defined: int = -1
    #: whether it draws random numbers
    draws: bool = False


class Cut(msgspec.Struct, eq=False):
    """One run: what the message says, and what the client keeps to explain failures."""

    compiled: Compiled
    inputs: tuple[int, ...]
    outputs: list[BufferHandle]
    params: tuple[Any, ...]
    #: per op the offset of the instruction that asked for it, in the code of its statement
    lines: list[int]
    #: id of the first fresh buffer
    first: int = 0
    #: a bit for each of the outputs that somebody holds
    live: bytes = b""
    #: code of each statement, with the first op that it asked for
    codes: tuple[tuple[int, CodeType | None], ...] = ()


class ProgramRecorder:
    """Turns entries into cuts; keeps the sequences it has seen (bounded, oldest use first)."""

    def __init__(self, most: int = 4096) -> None:
        self._most = most
        self._known: OrderedDict[bytes, Compiled] = OrderedDict()
        self._flags = wire.Flags()
        #: a number for each state of the switches, which a sequence begins with
        self._numbers: dict[wire.Flags, int] = {self._flags: 0}
        self._number = 0
        #: the bytes of the programs sent, by hash
        self.by_hash: dict[bytes, Compiled] = {}

    def set_flags(self, flags: wire.Flags) -> None:
        """Global switches of torch that change arithmetic, from the next cut on."""
        if flags is not self._flags:
            self._flags = flags
            self._number = self._numbers.setdefault(flags, len(self._numbers))

    def take(self, entries: list[Entry], count: int) -> Cut:
        """Take the first `count` entries (some) out of the list, and canonicalise them.

        Fewer are taken where the program would be too large; `Cut.lines` has an item for each.
        """
        key, compiled, inputs, outputs, params, lines = take(
            entries, count, self._number, self._known
        )
        if compiled is None:
            count = len(lines)
            compiled = self._compile(key, entries[:count], len(inputs))
            if len(compiled.data) > _MOST_BYTES and count > 1:
                return self.take(entries, count // 2)
            self._keep(key, compiled)
            del entries[:count]
        else:
            self._known.move_to_end(key)
        return Cut(compiled, inputs, outputs, params, lines)

    def _compile(self, key: bytes, entries: list[Entry], inputs: int) -> Compiled:
        sequence = array("q", key)
        program = _Builder(inputs, self._flags).build(sequence, entries)
        data = wire.encode_program(program)
        plans = tuple(entry[0] for entry in entries)
        digest = wire.program_hash(data)
        draws = any(plan.info.seeded for plan in plans)
        written = _written(sequence, entries)
        return Compiled(digest, data, program.fresh, plans, draws=draws, written=written)

    def _keep(self, key: bytes, compiled: Compiled) -> None:
        self._known[key] = compiled
        self.by_hash[compiled.hash] = compiled
        if len(self._known) > self._most:
            _, oldest = self._known.popitem(last=False)
            if self.by_hash.get(oldest.hash) is oldest:
                del self.by_hash[oldest.hash]


def _written(sequence: Sequence[int], entries: list[Entry]) -> tuple[int, ...]:
    """Input slots that an op may write; follows the sequence that `take` made."""
    found: set[int] = set()
    at = 1
    for plan, buffers, *_ in entries:
        at += 1
        found.update(sequence[at + 2 * k] for k in plan.written(unsaid=True))
        at += 2 * len(buffers)
    return tuple(sorted(slot for slot in found if slot >= 0))


class _Builder:
    """Writes a program from entries; follows the sequence that `take` made."""

    def __init__(self, inputs: int, flags: wire.Flags) -> None:
        self._inputs = inputs
        self._flags = flags
        self._geometries: dict[tuple[InternedGeometry, int], int] = {}
        self._views: dict[wire.View, int] = {}
        self._kinds: list[str] = []
        self._fresh = 0

    def build(self, sequence: Sequence[int], entries: list[Entry]) -> wire.Program:
        at = 1
        ops: list[wire.Op] = []
        for plan, buffers, _, outs, numbers, _ in entries:
            at += 1
            refs = []
            for k in range(len(buffers)):
                refs.append(self._slot(sequence[at], sequence[at + 1], plan.geometries[k]))
                at += 2
            first = len(self._kinds)
            self._kinds.extend(type(number).__name__ for number in numbers)
            ops.append(self._op(plan, refs, first, len(outs)))
        return wire.Program(
            self._inputs,
            tuple(self._kinds),
            tuple(self._table()),
            tuple(self._views),
            tuple(ops),
            self._flags,
        )

    def _table(self) -> list[wire.Geometry]:
        return [
            wire.Geometry(g.wire.dtype, g.shape, g.stride, offset, g.bits)
            for g, offset in self._geometries
        ]

    def _geometry(self, geometry: InternedGeometry, offset: int = 0) -> int:
        return self._geometries.setdefault((geometry, offset), len(self._geometries))

    def _slot(self, slot: int, lifted: int, geometry: InternedGeometry) -> wire.Slot:
        if slot < 0:
            view = wire.View(self._geometry(geometry, lifted))
            slot = self._inputs - slot - 1
        elif lifted == 0:
            view = wire.View(self._geometry(geometry))
        else:
            self._kinds.append("int")
            view = wire.View(self._geometry(geometry), len(self._kinds) - 1)
        return wire.Slot(slot, self._views.setdefault(view, len(self._views)))

    def _op(self, plan: OpPlan, refs: list[wire.Slot], first: int, made: int) -> wire.Op:
        def fill(value: Any) -> Any:
            if type(value) is TensorRef:
                return refs[value.index]
            if type(value) is tuple:
                return tuple(fill(item) for item in value)
            if type(value) is wire.Param:
                return wire.Param(first + value.index, value.kind)
            if type(value) is wire.HostScalar:
                return wire.HostScalar(first + value.index, value.kind, value.dtype)
            return value

        args = tuple(fill(value) for value in plan.args)
        kwargs = {name: fill(value) for name, value in plan.kwargs.items()}
        return wire.Op(plan.info.name, args, kwargs, tuple(self._outs(plan, made)))

    def _outs(self, plan: OpPlan, made: int) -> list[wire.Out]:
        if plan.outs is None:  # sizes that only the run can tell
            return [self._new(-1) for _ in range(made)]
        grown = dict(plan.grown)
        outs = []
        for out in plan.outs:
            if isinstance(out, InternedGeometry):
                outs.append(self._new(self._geometry(out)))
            elif isinstance(out, int) and out in grown:
                outs.append(self._new(self._geometry(grown[out])))
            else:
                outs.append(wire.Out(wire.NO_SLOT))
        return outs

    def _new(self, geometry: int) -> wire.Out:
        self._fresh += 1
        return wire.Out(self._inputs + self._fresh - 1, geometry)
