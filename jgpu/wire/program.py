"""The program form: a canonical straight-line list of aten ops over numbered slots.

A program says nothing about one session: buffers are slots in order of first use, numbers that no
geometry depends on are run parameters, and what garbage collection decides is left out. Two
notebooks that run the same code therefore name the same hash. Decoding checks the form alone
(types, limits, slots defined before use); whether the ops are allowed and the geometries true is
the executor's affair.

Invariant: `program_hash` depends on the content and on nothing else.
"""

from collections.abc import Iterator
from hashlib import blake2b
from typing import Annotated, Final, TypeAlias

import msgspec

from jgpu.errors import ProgramError
from jgpu.wire import limits
from jgpu.wire.switches import Flags

__all__ = [
    "CONJ",
    "NEG",
    "NO_SLOT",
    "Arg",
    "Complex",
    "DeviceArgument",
    "Dtype",
    "Flags",
    "GeneratorArg",
    "Geometry",
    "HostScalar",
    "HostTensor",
    "Layout",
    "MemoryFormat",
    "Op",
    "Out",
    "Param",
    "Program",
    "Slot",
    "View",
    "decode_program",
    "encode_program",
    "program_hash",
    "slots_of",
    "validate_form",
]

Name: TypeAlias = Annotated[str, msgspec.Meta(max_length=limits.MAX_NAME)]
Index: TypeAlias = Annotated[int, msgspec.Meta(ge=0, lt=1 << 31)]
Size: TypeAlias = Annotated[int, msgspec.Meta(ge=0, lt=limits.MAX_SIZE + 1)]
Sizes: TypeAlias = Annotated[tuple[Size, ...], msgspec.Meta(max_length=limits.MAX_DIMS)]

#: Bits of `Geometry.bits`: the lazy conjugate and the lazy negative of torch.
CONJ: Final = 1
NEG: Final = 2
#: `Out.slot` of a returned tensor that is no new storage (a mutated input, an undefined tensor).
NO_SLOT: Final = -1


class Geometry(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """How a tensor lies over its storage: torch dtype name, sizes, strides, offset in elements."""

    dtype: Name
    shape: Sizes
    stride: Sizes
    offset: Size = 0
    bits: Annotated[int, msgspec.Meta(ge=0, le=3)] = 0


class View(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A geometry over a slot; `offset_param` >= 0 names the run parameter holding its offset."""

    geometry: Index
    offset_param: Annotated[int, msgspec.Meta(ge=-1, lt=1 << 31)] = -1


class Slot(msgspec.Struct, frozen=True, tag="s", tag_field="k", forbid_unknown_fields=True):
    """A tensor argument: the storage in `slot` seen through `view` (an index into views)."""

    slot: Index
    view: Index


class Param(msgspec.Struct, frozen=True, tag="p", tag_field="k", forbid_unknown_fields=True):
    """A number given anew at each run. `kind` is its Python type, which decides promotion."""

    index: Index
    kind: Annotated[str, msgspec.Meta(pattern="^(int|float|bool|complex)$")]


class Complex(msgspec.Struct, frozen=True, tag="c", tag_field="k", forbid_unknown_fields=True):
    """A complex constant."""

    real: float
    imag: float


class Dtype(msgspec.Struct, frozen=True, tag="d", tag_field="k", forbid_unknown_fields=True):
    """A torch.dtype by name, such as "float32"."""

    name: Name


class Layout(msgspec.Struct, frozen=True, tag="l", tag_field="k", forbid_unknown_fields=True):
    """A torch.layout by name; only "strided" is accepted by executors."""

    name: Name


class MemoryFormat(msgspec.Struct, frozen=True, tag="m", tag_field="k", forbid_unknown_fields=True):
    """A torch.memory_format by name, such as "channels_last"."""

    name: Name


class DeviceArgument(
    msgspec.Struct, frozen=True, tag="D", tag_field="k", forbid_unknown_fields=True
):
    """The executor's device, whatever it is."""


class GeneratorArg(msgspec.Struct, frozen=True, tag="g", tag_field="k", forbid_unknown_fields=True):
    """A random number generator of the session: 0 is its default one."""

    index: Index = 0


class HostTensor(msgspec.Struct, frozen=True, tag="h", tag_field="k", forbid_unknown_fields=True):
    """A small contiguous tensor in host memory, for ops that take host tensors as arguments."""

    dtype: Name
    shape: Sizes
    data: Annotated[bytes, msgspec.Meta(max_length=limits.INLINE_BYTES)]


class HostScalar(msgspec.Struct, frozen=True, tag="n", tag_field="k", forbid_unknown_fields=True):
    """A tensor of no dimensions in host memory, of `dtype`, whose value is a run parameter."""

    index: Index
    kind: Annotated[str, msgspec.Meta(pattern="^(int|float|bool|complex)$")]
    dtype: Name


Leaf: TypeAlias = (
    bool
    | int
    | float
    | Annotated[str, msgspec.Meta(max_length=limits.MAX_NAME)]
    | Slot
    | Param
    | Complex
    | Dtype
    | Layout
    | MemoryFormat
    | DeviceArgument
    | GeneratorArg
    | HostTensor
    | HostScalar
    | None
)
#: One argument of an op: a leaf, or one list of leaves (aten has no deeper ones).
Arg: TypeAlias = Leaf | Annotated[tuple[Leaf, ...], msgspec.Meta(max_length=limits.MAX_LIST)]


class Out(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A returned tensor: the new slot and the geometry it is expected to have.

    A slot with geometry -1 is one whose sizes depend on data: the run reports them, and no later
    op of the same program may use the slot. A returned tensor that aliases a written argument has
    NO_SLOT, unless the op changed its geometry (`out=` that was resized): then the new slot shares
    the argument's storage.
    """

    slot: Annotated[int, msgspec.Meta(ge=NO_SLOT, lt=1 << 31)]
    geometry: Annotated[int, msgspec.Meta(ge=-1, lt=1 << 31)] = -1


class Op(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """One call: `name` is namespace::base.overload, e.g. "aten::add.Tensor"."""

    name: Name
    args: Annotated[tuple[Arg, ...], msgspec.Meta(max_length=64)]
    kwargs: Annotated[dict[Name, Arg], msgspec.Meta(max_length=32)]
    outs: Annotated[tuple[Out, ...], msgspec.Meta(max_length=limits.MAX_LIST)]


class Program(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Slots 0..inputs-1 are the session's buffers; every other slot is made by exactly one op.

    `inputs`: number of input slots. `params`: kinds of the run parameters in order. `geometries`
    and `views`: tables that ops index. All slots made by ops are outputs of the program: the run
    gives each a buffer, or says that nobody needs it any more.
    """

    inputs: Index
    params: Annotated[tuple[str, ...], msgspec.Meta(max_length=limits.MAX_SLOTS)]
    geometries: Annotated[tuple[Geometry, ...], msgspec.Meta(max_length=limits.MAX_GEOMETRIES)]
    views: Annotated[tuple[View, ...], msgspec.Meta(max_length=limits.MAX_GEOMETRIES)]
    ops: Annotated[tuple[Op, ...], msgspec.Meta(max_length=limits.MAX_OPS)]
    flags: Flags = Flags()

    @property
    def fresh(self) -> int:
        """Number of slots that the program's ops make."""
        return sum(out.slot != NO_SLOT for op in self.ops for out in op.outs)


_ENCODER: Final = msgspec.msgpack.Encoder(order="deterministic")
_DECODER: Final = msgspec.msgpack.Decoder(Program)
_KINDS: Final = frozenset({"int", "float", "bool", "complex"})


def encode_program(program: Program) -> bytes:
    """Canonical bytes of a program."""
    return _ENCODER.encode(program)


def decode_program(data: bytes) -> Program:
    """Decode and check the form; raises `ProgramError` with a sentence for anything else."""
    try:
        program = _DECODER.decode(data)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise ProgramError(f"These bytes are not a program: {error}.") from None
    validate_form(program)
    return program


def program_hash(data: bytes) -> bytes:
    """The 16-byte content hash of a program's canonical bytes."""
    return blake2b(data, digest_size=16, person=b"jgpu-program").digest()


def slots_of(op: Op) -> Iterator[Slot]:
    """All tensor arguments of an op, in order."""
    for arg in (*op.args, *op.kwargs.values()):
        if isinstance(arg, Slot):
            yield arg
        elif isinstance(arg, tuple):
            for leaf in arg:
                if isinstance(leaf, Slot):
                    yield leaf


def _params_of(op: Op) -> Iterator[Param | HostScalar]:
    for arg in (*op.args, *op.kwargs.values()):
        for leaf in arg if isinstance(arg, tuple) else (arg,):
            if isinstance(leaf, Param | HostScalar):
                yield leaf


def validate_form(program: Program) -> None:
    """Check what can be checked without torch: indices, order of definition, parameter kinds."""
    for kind in program.params:
        if kind not in _KINDS:
            raise ProgramError(f"Unknown parameter kind {kind!r}.")
    for geometry in program.geometries:
        if len(geometry.shape) != len(geometry.stride):
            raise ProgramError("A geometry has as many strides as sizes.")
    for view in program.views:
        if view.geometry >= len(program.geometries):
            raise ProgramError("A view names a geometry that is not in the table.")
        if view.offset_param >= 0:
            _check_param(program, view.offset_param, "int")
    made = program.inputs
    unknown: set[int] = set()
    for op in program.ops:
        if any(slot.slot in unknown for slot in slots_of(op)):
            raise ProgramError(f"{op.name} uses a slot whose sizes are not known yet.")
        made = _validate_op(program, op, made)
        unknown.update(out.slot for out in op.outs if out.geometry < 0)
    if made > limits.MAX_SLOTS:
        raise ProgramError(f"A program has at most {limits.MAX_SLOTS} slots, not {made}.")


def _check_param(program: Program, index: int, kind: str) -> None:
    if index >= len(program.params) or program.params[index] != kind:
        raise ProgramError(f"Run parameter {index} of kind {kind} is not declared.")


def _validate_op(program: Program, op: Op, made: int) -> int:
    for arg in slots_of(op):
        if arg.slot >= made:
            raise ProgramError(f"{op.name} uses slot {arg.slot} before it is made.")
        if arg.view >= len(program.views):
            raise ProgramError(f"{op.name} uses a view that is not in the table.")
    for param in _params_of(op):
        _check_param(program, param.index, param.kind)
    for out in op.outs:
        if out.geometry >= len(program.geometries):
            raise ProgramError(f"{op.name} returns a geometry that is not in the table.")
        if out.slot == NO_SLOT:
            continue
        if out.slot != made:
            raise ProgramError(f"{op.name} must make slot {made} next.")
        made += 1
    return made
