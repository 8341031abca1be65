"""Binding an op's arguments to its schema: arity, names, kinds and types.

What comes out is a tuple of nodes, one per parameter of the schema, defaults filled in: constants
are Python and torch values, tensors, run parameters and generators are references. Shapes and
contracts are checked elsewhere.

Invariant: a node that is not a reference holds nothing mutable of a client's.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import torch

from jgpu.broker.executor.programs.checking.ops import Argument, OpSchema
from jgpu.broker.executor.programs.geometry import dtype_of
from jgpu.errors import ProgramError
from jgpu.wire import program as form

__all__ = [
    "Bound",
    "Const",
    "Draw",
    "Many",
    "Node",
    "NumberValue",
    "Ref",
    "bind",
    "refs_of",
    "values_of",
]


@dataclass(frozen=True, slots=True)
class Const:
    """A value that is the same at every run."""

    value: Any


@dataclass(frozen=True, slots=True)
class Ref:
    """A tensor: a slot through a view (indices of the program's tables)."""

    slot: int
    view: int
    written: bool


@dataclass(frozen=True, slots=True)
class NumberValue:
    """A run parameter; with a `dtype` it is given to the op as a host tensor of no dimensions."""

    index: int
    kind: str
    dtype: torch.dtype | None = None

    def of(self, number: Any) -> Any:
        """The argument that this number becomes."""
        return number if self.dtype is None else host_scalar(number, self.dtype)


@dataclass(frozen=True, slots=True)
class Draw:
    """A generator of the session."""

    index: int


@dataclass(frozen=True, slots=True)
class Many:
    """A list argument."""

    nodes: tuple["Const | Ref | NumberValue", ...]


Node: TypeAlias = Const | Ref | NumberValue | Draw | Many
Bound: TypeAlias = tuple[Node, ...]

_NONE: Final = Const(None)
_INT: Final = 1 << 63
#: where torch takes any number it takes unsigned ones of 64 bits, too
_UNSIGNED: Final = 1 << 64
_MEMORY_FORMATS: Final = {
    name: getattr(torch, name)
    for name in ("contiguous_format", "preserve_format", "channels_last", "channels_last_3d")
}


def bind(op: form.Op, info: OpSchema, device: torch.device) -> Bound:
    """The op's arguments as nodes in the schema's order; raises `ProgramError`."""
    positional = [a for a in info.arguments if not a.kwarg_only]
    if len(op.args) > len(positional):
        raise ProgramError(f"{op.name} takes {len(positional)} arguments, not {len(op.args)}.")
    given = dict(zip((a.name for a in positional), op.args, strict=False))
    for name, arg in op.kwargs.items():
        if name in given:
            raise ProgramError(f"{op.name} is given {name} twice.")
        given[name] = arg
    nodes = tuple(_bind_one(op.name, info, a, given, device) for a in info.arguments)
    if given:
        raise ProgramError(f"{op.name} takes no argument {next(iter(given))!r}.")
    return nodes


def refs_of(bound: Bound) -> Iterator[Ref]:
    """All tensor references, in order."""
    for node in bound:
        if isinstance(node, Ref):
            yield node
        elif isinstance(node, Many):
            yield from (leaf for leaf in node.nodes if isinstance(leaf, Ref))


def values_of(bound: Bound) -> Iterator[NumberValue]:
    """All run parameters, in order."""
    for node in bound:
        for leaf in node.nodes if isinstance(node, Many) else (node,):
            if isinstance(leaf, NumberValue):
                yield leaf


def _bind_one(
    name: str, info: OpSchema, argument: Argument, given: dict[str, form.Arg], device: torch.device
) -> Node:
    if argument.name not in given:
        if argument.required:
            raise ProgramError(f"{name} misses its argument {argument.name!r}.")
        if argument.kind == "generator":
            return Draw(0)
        # pageable memory is never pinned on a client's word, so pin_memory keeps its default
        return Const(argument.default)
    arg = given.pop(argument.name)
    if argument.kind == "generator":
        return _generator(name, arg)
    if arg is None:
        # internal ops also take an undefined tensor where the schema has a plain one
        if not argument.optional and not (info.internal and argument.kind == "tensor"):
            raise ProgramError(f"{name}: {argument.name} cannot be None.")
        return _NONE
    if argument.name == "pin_memory":
        return Const(None if argument.optional else False)
    node = _node(info, argument, arg, device)
    if node is None:
        raise ProgramError(
            f"{name}: {argument.name} must be of kind {argument.kind}, not {_kind_of(arg)}."
        )
    return node


def _node(info: OpSchema, argument: Argument, arg: form.Arg, device: torch.device) -> Node | None:
    kind = argument.kind
    if kind == "tensor":
        found = _tensor(arg, argument)
        # torch takes a number for a tensor, as a 0-dim one that does not decide the result's type
        return found if found is not None or argument.written else _number(info, argument, arg)
    if kind in ("tensors", "optional_tensors"):
        return _tensors(arg, argument)
    if kind == "device":
        return Const(device) if isinstance(arg, form.DeviceArgument) else None
    if kind in _ELEMENT:
        element = _ELEMENT[kind]
        if not isinstance(arg, tuple):
            return element(info, argument, arg) if argument.broadcast else None
        nodes = [element(info, argument, leaf) for leaf in arg]
        if any(node is None for node in nodes):
            return None
        if all(isinstance(node, Const) for node in nodes):
            return Const([node.value for node in nodes if isinstance(node, Const)])
        return Many(tuple(node for node in nodes if node is not None))
    return _PLAIN[kind](info, argument, arg)


def _generator(name: str, arg: form.Arg) -> Draw:
    if arg is None:
        return Draw(0)
    if not isinstance(arg, form.GeneratorArg):
        raise ProgramError(f"{name}: generator must be a generator, not {_kind_of(arg)}.")
    return Draw(arg.index)


def host_scalar(number: Any, dtype: torch.dtype) -> torch.Tensor:
    """A 0-dim host tensor; unlike a plain number it takes part in type promotion by its dtype."""
    return torch.tensor(number, dtype=dtype)


def _tensor(arg: form.Leaf | form.Arg, argument: Argument) -> Const | Ref | NumberValue | None:
    if isinstance(arg, form.Slot):
        return Ref(arg.slot, arg.view, argument.written)
    if isinstance(arg, form.HostScalar) and not argument.written:
        return NumberValue(arg.index, arg.kind, dtype_of(arg.dtype))
    if isinstance(arg, form.HostTensor) and not argument.written:
        return Const(_host_tensor(arg))
    return None


def _tensors(arg: form.Arg, argument: Argument) -> Many | None:
    if not isinstance(arg, tuple):
        return None
    nodes = []
    for leaf in arg:
        node = _tensor(leaf, argument)
        if node is None and leaf is None and argument.kind == "optional_tensors":
            node = _NONE
        if node is None:
            return None
        nodes.append(node)
    return Many(tuple(nodes))


def _host_tensor(arg: form.HostTensor) -> torch.Tensor:
    dtype = dtype_of(arg.dtype)
    needed = math.prod(arg.shape) * dtype.itemsize
    if needed != len(arg.data):
        raise ProgramError(f"A host tensor of {needed} bytes came with {len(arg.data)}.")
    if not needed:
        return torch.empty(arg.shape, dtype=dtype)
    return torch.frombuffer(bytearray(arg.data), dtype=dtype).reshape(arg.shape)


def _int(info: OpSchema, argument: Argument, arg: Any) -> Const | None:
    plain = isinstance(arg, int) and not isinstance(arg, bool) and -_INT <= arg < _INT
    return Const(arg) if plain else None


def _float(info: OpSchema, argument: Argument, arg: Any) -> Const | NumberValue | None:
    if isinstance(arg, form.Param):
        return _value(info, argument, arg) if arg.kind == "float" else None
    if isinstance(arg, float):
        return Const(arg)
    node = _int(info, argument, arg)
    return Const(float(node.value)) if node else None


def _number(info: OpSchema, argument: Argument, arg: Any) -> Const | NumberValue | None:
    if isinstance(arg, form.Param):
        return _value(info, argument, arg)
    if isinstance(arg, form.Complex):
        return Const(complex(arg.real, arg.imag))
    if isinstance(arg, float | bool) or (type(arg) is int and _INT <= arg < _UNSIGNED):
        return Const(arg)
    return _int(info, argument, arg)


def _value(info: OpSchema, argument: Argument, arg: form.Param) -> NumberValue:
    shapes = argument.name.startswith("scales")  # the upsample family's
    if not info.takes_tensors or shapes or argument.kind == "floats":
        raise ProgramError(
            f"{info.name}: {argument.name} may shape the result; it is no parameter."
        )
    return NumberValue(arg.index, arg.kind)


def _bool(info: OpSchema, argument: Argument, arg: Any) -> Const | None:
    return Const(arg) if isinstance(arg, bool) else None


def _str(info: OpSchema, argument: Argument, arg: Any) -> Const | None:
    return Const(arg) if isinstance(arg, str) else None


def _dtype(info: OpSchema, argument: Argument, arg: Any) -> Const | None:
    return Const(dtype_of(arg.name)) if isinstance(arg, form.Dtype) else None


def _layout(info: OpSchema, argument: Argument, arg: Any) -> Const | None:
    fits = isinstance(arg, form.Layout) and arg.name == "strided"
    return Const(torch.strided) if fits else None


def _memory_format(info: OpSchema, argument: Argument, arg: Any) -> Const | None:
    found = _MEMORY_FORMATS.get(arg.name) if isinstance(arg, form.MemoryFormat) else None
    return Const(found) if found is not None else None


_PLAIN: Final[dict[str, Callable[[OpSchema, Argument, Any], Const | NumberValue | None]]] = {
    "int": _int,
    "float": _float,
    "number": _number,
    "bool": _bool,
    "str": _str,
    "dtype": _dtype,
    "layout": _layout,
    "memory_format": _memory_format,
}
_ELEMENT: Final = {"ints": _int, "floats": _float, "numbers": _number, "bools": _bool}


def _kind_of(arg: form.Arg) -> str:
    return type(arg).__name__.lower()
