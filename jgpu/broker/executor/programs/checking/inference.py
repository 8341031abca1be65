"""What an op returns for arguments of known geometry, by a formula or by torch's meta kernels.

Meta kernels know shapes, and which returns are the arguments themselves; their strides are often
not the device's. Nothing here touches data. Answers depend on the op and the geometries alone and
are remembered, bounded, for all sessions.

An answer is an expectation, checked against the truth at the first run, never a licence to skip a
bounds check.
"""

import re
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from threading import Lock
from typing import Any, Final

import torch
from msgspec import structs

from jgpu.broker.executor.programs.checking.arguments import (
    Bound,
    Const,
    Draw,
    Many,
    Node,
    NumberValue,
    Ref,
    values_of,
)
from jgpu.broker.executor.programs.checking.metanumbers import with_meta_numbers
from jgpu.broker.executor.programs.checking.ops import OpSchema
from jgpu.broker.executor.programs.geometry import ViewSpec, geometry_of, required_bytes
from jgpu.errors import ProgramError
from jgpu.wire.formulas import FORMULAS, returned
from jgpu.wire.program import Geometry

__all__ = ["META", "Inferred", "Returned", "call_on", "flatten", "infer", "scratch"]

META: Final = torch.device("meta")
#: What a run parameter is while geometry is inferred: guesses, of which two must agree. Some ops
#: look at numbers before all else (a least one and a largest one), so an op's parameters grow from
#: one to the next, and the later guesses are for ops that take the first to be wrong.
#: of an error that says of a meta kernel that it is not there; from torch 2.14 on ops say also of
#: arguments that they do not take that this is not implemented
_LACKING: Final = re.compile(
    "with Meta tensors|'Meta' backend|unimplemented by default|Cannot access storage"
)
_GUESSES: Final = (
    {"float": 0.5, "int": 1, "bool": True, "complex": 1j},
    {"float": 0.25, "int": 2, "bool": True, "complex": 2 + 1j},
    {"float": 0.5, "int": -64, "bool": True, "complex": 1j},
    {"float": 0.25, "int": -65, "bool": True, "complex": 2 + 1j},
)
#: How much the k-th parameter exceeds the first; probabilities stay below 1.
_GROWTH: Final[dict[str, Callable[[int], float]]] = {
    "float": lambda k: 0.25 - 0.25 / (k + 1),
    "int": int,
}
_MOST: Final = 16384
#: characters of a key that is kept; longer ones are of lists of many tensors
_LONGEST_KEY: Final = 4096
#: Ops whose result depends on how large their argument's storage is.
_STORAGE_MATTERS: Final = ("as_strided", "resize", "resize_as", "_reshape_alias")


@dataclass(frozen=True, slots=True)
class Returned:
    """One tensor return: its geometry, and the tensor argument it shares storage with, or -1."""

    geometry: Geometry
    alias: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class Inferred:
    """An op's tensor returns in order (None: undefined), and arguments whose geometry changed."""

    returns: tuple[Returned | None, ...]
    changed: tuple[tuple[int, Returned], ...]


def flatten(info: OpSchema, result: Any) -> list[Any]:
    """The tensor returns of an op in order, lists laid out flat, other returns left out."""
    if not any(kind != "other" for kind in info.returns):
        return []
    if result is None or isinstance(result, torch.Tensor):
        return [result]
    found = []
    for item in result:
        if isinstance(item, list):
            found.extend(item)
        elif item is None or isinstance(item, torch.Tensor):
            found.append(item)
    return found


def scratch(geometry: Geometry, device: torch.device, nbytes: int = 0) -> torch.Tensor:
    """A tensor of this geometry over a zeroed storage of its own."""
    make = torch.empty if device.type == "meta" else torch.zeros
    base = make(max(nbytes, required_bytes(geometry)), dtype=torch.uint8, device=device)
    return ViewSpec(geometry).over(base)


def call_on(
    info: OpSchema,
    bound: Bound,
    tensors: Sequence[Any],
    values: Any,
    generator: Any,
    call: Callable[..., Any] | None = None,
) -> Any:
    """Call the op with `tensors` for its references in order; `values` maps a `Value`.

    `call` is called instead of the op.
    """
    left = iter(tensors)

    def fill(node: Node) -> Any:
        if isinstance(node, Ref):
            return next(left)
        if isinstance(node, Many):
            return [fill(leaf) for leaf in node.nodes]
        if isinstance(node, NumberValue):
            return node.of(values(node))
        return generator if isinstance(node, Draw) else node.value

    args, kwargs = [], {}
    for argument, node in zip(info.arguments, bound, strict=True):
        filled = fill(node)
        if not argument.kwarg_only:
            args.append(filled)
        elif filled is not None or argument.required:
            kwargs[argument.name] = filled
    return (call or info.call)(*args, **kwargs)


_LOCK: Final = Lock()
_known: OrderedDict[tuple[Any, ...], Inferred | str | None] = OrderedDict()


def infer(info: OpSchema, bound: Bound, tensors: Sequence[tuple[Geometry, int]]) -> Inferred | None:
    """Infer an op's returns from the (geometry, storage bytes) of its tensors, in order.

    None where no meta kernel can say. Raises `ProgramError` where the op refuses its arguments.
    """
    if info.name in FORMULAS:
        foretold = _foretold(info, bound, tensors)
        if foretold is not None:
            return foretold
    key = _key(info, bound, tensors)
    with _LOCK:
        found = _known.get(key, key)
    if found is key:
        found = _infer(info, bound, tensors)
        with _LOCK:
            if len(repr(key)) <= _LONGEST_KEY:
                _known[key] = found
            while len(_known) > _MOST:
                _known.popitem(last=False)
    if isinstance(found, str):
        raise ProgramError(f"{info.name} does not take these arguments: {found}")
    return found  # type: ignore[return-value]


def _foretold(
    info: OpSchema, bound: Bound, tensors: Sequence[tuple[Geometry, int]]
) -> Inferred | None:
    guess = _guessed(list(values_of(bound)), _GUESSES[0])

    def call(*args: Any, **kwargs: Any) -> tuple[Geometry | None, ...] | None:
        return returned(info.name, args, kwargs)

    given = [geometry for geometry, _ in tensors]
    made = call_on(info, bound, given, lambda node: guess[node.index], None, call)
    if made is None:
        return None
    returns = (None if e is None else Returned(e, -1, required_bytes(e)) for e in made)
    return Inferred(tuple(returns), ())


def _key(info: OpSchema, bound: Bound, tensors: Sequence[tuple[Geometry, int]]) -> tuple[Any, ...]:
    matters = info.base.removesuffix("_").startswith(_STORAGE_MATTERS) or info.resizes
    shapes = tuple(tensors) if matters else tuple(geometry for geometry, _ in tensors)
    return info.name, torch.get_default_dtype(), shapes, tuple(_key_of(node) for node in bound)


def _key_of(node: Node) -> Any:
    if isinstance(node, Ref):
        return "ref"
    if isinstance(node, Many):
        return tuple(_key_of(leaf) for leaf in node.nodes)
    if isinstance(node, NumberValue):
        return "value", node.kind, node.dtype
    if isinstance(node, Draw):
        return "draw"
    value = node.value
    if isinstance(value, torch.Tensor):
        return "host", value.dtype, tuple(value.shape), value.numpy(force=True).tobytes()
    return type(value).__name__, repr(value)


def _infer(
    info: OpSchema, bound: Bound, tensors: Sequence[tuple[Geometry, int]]
) -> Inferred | str | None:
    on_meta = tuple(_moved(node) for node in bound)
    values = list(values_of(on_meta))
    found: Inferred | None = None
    refusal = None
    for guess in _GUESSES if values else _GUESSES[:1]:
        try:
            inferred = _infer_once(info, on_meta, tensors, _guessed(values, guess))
        except AttributeError:
            return None  # the meta kernel trips over itself (as over biases that are missing)
        except Exception as error:
            text = str(error)
            if isinstance(error, NotImplementedError) and _LACKING.search(text):
                return None
            if " meta " in text or "data-dependent" in text.lower():
                return None
            refusal = refusal or text.split("\n", 1)[0][:1000]
            continue
        if found is not None:
            if _plain(inferred) == _plain(found):
                return found
            if _shapes(inferred) == _shapes(found):
                return None  # it lies one way or another; so each run is compared with its claim
            return "its result's geometry depends on a run parameter."
        found = inferred
    return found if refusal is None else refusal


def _plain(inferred: Inferred) -> Inferred:
    """The same without strides that say nothing: of sizes of one, and of empty tensors."""

    def plain(returned: Returned) -> Returned:
        geometry = returned.geometry
        empty = 0 in geometry.shape
        stride = tuple(
            0 if empty or size == 1 else step
            for size, step in zip(geometry.shape, geometry.stride, strict=True)
        )
        return replace(returned, geometry=structs.replace(geometry, stride=stride))

    returns = tuple(None if r is None else plain(r) for r in inferred.returns)
    return Inferred(returns, tuple((k, plain(r)) for k, r in inferred.changed))


def _shapes(inferred: Inferred) -> tuple[Any, ...]:
    """What must not depend on a number: shapes, dtypes, what is shared, what is changed and how."""
    return inferred.changed, tuple(
        None if r is None else (r.geometry.shape, r.geometry.dtype, r.geometry.bits, r.alias)
        for r in inferred.returns
    )


def _guessed(values: Sequence[NumberValue], guess: dict[str, Any]) -> dict[int, Any]:
    """A number for each run parameter, by its index."""
    return {
        value.index: guess[value.kind] + _GROWTH[value.kind](rank)
        if value.kind in _GROWTH
        else guess[value.kind]
        for rank, value in enumerate(values)
    }


def _moved(node: Node) -> Node:
    if not isinstance(node, Const):
        return node
    if isinstance(node.value, torch.device):
        return Const(META)
    if isinstance(node.value, torch.Tensor) and node.value.ndim:
        return Const(node.value.to(META))
    return node


def _infer_once(
    info: OpSchema, bound: Bound, tensors: Sequence[tuple[Geometry, int]], guess: dict[int, Any]
) -> Inferred:
    inputs = [scratch(geometry, META, nbytes) for geometry, nbytes in tensors]
    call = with_meta_numbers(info.call)
    with torch.no_grad():
        result = call_on(info, bound, inputs, lambda node: guess[node.index], None, call)
    owners = {tensor.untyped_storage()._cdata: k for k, tensor in enumerate(inputs)}
    returns = tuple(None if r is None else _returned(r, owners) for r in flatten(info, result))
    changed = tuple(
        (k, _returned(tensor, owners))
        for k, (tensor, (geometry, nbytes)) in enumerate(zip(inputs, tensors, strict=True))
        if tuple(tensor.shape) != geometry.shape
        or tuple(tensor.stride()) != geometry.stride
        or tensor.untyped_storage().nbytes() > max(nbytes, required_bytes(geometry))
    )
    return Inferred(returns, changed)


def _returned(tensor: torch.Tensor, owners: dict[int, int]) -> Returned:
    storage = tensor.untyped_storage()
    return Returned(geometry_of(tensor), owners.get(storage._cdata, -1), storage.nbytes())
