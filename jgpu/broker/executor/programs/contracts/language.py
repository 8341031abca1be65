"""What contracts are written in: a call's arguments by name, and a few verbs over shapes.

Tensors are meta tensors of the program's geometry, everything else is as the kernel will get it.
A contract that is in doubt refuses.
"""

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, Final, TypeAlias

import torch

from jgpu.broker.executor.programs.checking.arguments import (
    Bound,
    Const,
    Draw,
    Many,
    Node,
    NumberValue,
    Ref,
)
from jgpu.broker.executor.programs.checking.inference import META, scratch
from jgpu.broker.executor.programs.checking.ops import OpSchema
from jgpu.broker.executor.programs.geometry import geometry_of, is_dense
from jgpu.errors import ProgramError
from jgpu.wire.formulas import returned
from jgpu.wire.program import Geometry

__all__ = [
    "CONTRACTS",
    "LIMITS",
    "Call",
    "check",
    "contract",
    "limit",
    "require_contract",
    "selfchecked",
    "works_without_meta",
]

Contract: TypeAlias = Callable[["Call"], None]

#: Contracts by base name, without the trailing underscore of in-place variants.
CONTRACTS: Final[dict[str, Contract]] = {}
#: Limits to plain numbers of any op, by base name.
LIMITS: Final[dict[str, Contract]] = {}
#: Ops whose kernels look at all they are given.
_SELFCHECKED: Final[set[str]] = set()
#: Internal ops without a meta kernel whose contract says all there is to say.
_WITHOUT_META: Final[set[str]] = set()


class Call:
    """The arguments of one internal op, by the schema's names."""

    def __init__(self, info: OpSchema, bound: Bound, geometries: Sequence[Geometry]) -> None:
        left = iter(geometries)
        self.name = info.name
        self._host = {
            argument.name: node.value
            for argument, node in zip(info.arguments, bound, strict=True)
            if isinstance(node, Const) and isinstance(node.value, torch.Tensor)
        }
        self._arguments: dict[str, Any] = {}
        for argument, node in zip(info.arguments, bound, strict=True):
            value = _filled(node, left)
            if argument.kind == "tensor" and isinstance(value, bool | int | float | complex):
                value = torch.empty((), device=META)  # a number that stands for a tensor
            self._arguments[argument.name] = value

    def __getitem__(self, name: str) -> Any:
        return self._arguments[name]

    def __contains__(self, name: str) -> bool:
        return name in self._arguments

    def either(self, *names: str) -> str:
        """Which of these an argument is called: torch renames some, the last from 2.14 on."""
        return next(name for name in names if name in self)

    def integers(self, name: str) -> list[int]:
        """The values of an int list, or of a vector of integers in host memory."""
        value = self._host.get(name, self._arguments[name])
        if isinstance(value, torch.Tensor):
            known = not value.is_meta and value.dim() == 1 and value.dtype is torch.int64
            self.require(known, f"{name} must be a list or a host tensor of int64")
            return [int(item) for item in value]
        return list(value)

    def items(self) -> list[tuple[str, Any]]:
        """All arguments by name."""
        return list(self._arguments.items())

    def require(self, holds: bool, sentence: str) -> None:
        """Refuse unless this holds."""
        if not holds:
            raise ProgramError(f"{self.name} may not run like this: {sentence}.")

    def shaped(self, name: str, shape: Sequence[int]) -> None:
        """The tensor (if given) has this shape."""
        tensor = self._arguments[name]
        if tensor is not None:
            self.require(
                tuple(tensor.shape) == tuple(shape),
                f"{name} has shape {list(tensor.shape)}, {list(shape)} is expected",
            )

    def dense(self, *names: str) -> None:
        """The tensors (if given) fill their storage without gaps or overlap."""
        for name in names:
            tensor = self._arguments[name]
            if tensor is not None:
                self.require(is_dense(geometry_of(tensor)), f"{name} is not dense")

    def contiguous(self, *names: str) -> None:
        """The tensors (if given) are contiguous."""
        for name in names:
            tensor = self._arguments[name]
            if tensor is not None:
                self.require(tensor.is_contiguous(), f"{name} is not contiguous")

    def same(self, name: str, other: Any) -> None:
        """The tensor (if given) has the shape of `other`, a tensor or an argument's name."""
        self.shaped(name, (self[other] if isinstance(other, str) else other).shape)

    def saved(self, name: str, other: Any, dtype: torch.dtype | None = None) -> None:
        """The same for what a forward op saved: dense too, and of that dtype if it matters."""
        self.same(name, other)
        self.dense(name)
        self.typed(name, dtype)

    def typed(self, name: str, dtype: torch.dtype | None) -> None:
        """The tensor (if given) is of this dtype."""
        tensor = self._arguments[name]
        if tensor is not None and dtype is not None:
            self.require(tensor.dtype is dtype, f"{name} is {tensor.dtype}, not {dtype}")

    def channels(self, count: int, *names: str) -> None:
        """The tensors (if given) are dense vectors of `count` elements."""
        for name in names:
            self.shaped(name, (count,))
            self.dense(name)

    def single(self, *names: str) -> None:
        """The tensors (if given) hold exactly one element."""
        for name in names:
            tensor = self._arguments[name]
            if tensor is not None:
                self.require(tensor.numel() == 1, f"{name} does not hold exactly one element")

    def forward(self, op: str, *args: Any, **kwargs: Any) -> Any:
        """What the forward op would return for these arguments, as meta tensors."""
        shown = [geometry_of(arg) if isinstance(arg, torch.Tensor) else arg for arg in args]
        foretold = returned(f"aten::{op}", shown, kwargs)
        if foretold is not None:
            made = [None if each is None else scratch(each, META) for each in foretold]
            return made[0] if len(made) == 1 else made
        base, _, overload = op.partition(".")
        call = getattr(getattr(torch.ops.aten, base), overload or "default")
        try:
            with torch.no_grad():
                return call(*args, **kwargs)
        except Exception as error:
            text = str(error).split("\n", 1)[0][:1000]
            raise ProgramError(f"{self.name} may not run like this: {text}") from None


def contract(*bases: str, without_meta: bool = False) -> Callable[[Contract], Contract]:
    """Registers a contract for ops of these base names."""

    def register(function: Contract) -> Contract:
        for base in bases:
            assert base not in CONTRACTS, base
            CONTRACTS[base] = function
        if without_meta:
            _WITHOUT_META.update(bases)
        return function

    return register


def limit(*bases: str) -> Callable[[Contract], Contract]:
    """Registers what holds for ops of these base names, be they internal or not."""

    def register(function: Contract) -> Contract:
        for base in bases:
            assert base not in LIMITS, base
            LIMITS[base] = function
        return function

    return register


def selfchecked(*bases: str, without_meta: bool = False) -> None:
    """Registers ops whose kernels look at all they are given; say why at the call."""
    for base in bases:
        assert base not in CONTRACTS, base
        CONTRACTS[base] = _nothing
    _SELFCHECKED.update(bases)
    if without_meta:
        _WITHOUT_META.update(bases)


def works_without_meta(base: str) -> bool:
    """Whether an internal op may run though no meta kernel foretells its result."""
    return base.removesuffix("_") in _WITHOUT_META


def check(info: OpSchema, bound: Bound, geometries: Sequence[Geometry]) -> None:
    """Hold a call to its contract, if its op has one or needs one; raises `ProgramError`."""
    require_contract(info)
    base = info.base.removesuffix("_")
    found = [CONTRACTS.get(base, _nothing), LIMITS.get(base, _nothing)]
    if found == [_nothing, _nothing]:
        return
    try:
        call = Call(info, bound, geometries)
        for each in found:
            each(call)
    except (
        ArithmeticError,
        AttributeError,
        LookupError,
        RuntimeError,
        TypeError,
        ValueError,
    ) as error:
        # shapes so odd that a contract's own words do not fit them
        raise ProgramError(f"{info.name} may not run like this: {error}.") from error


def require_contract(info: OpSchema) -> None:
    """Raise `ProgramError` for an internal op that has no contract."""
    base = info.base.removesuffix("_")
    if info.internal and base not in CONTRACTS:
        raise ProgramError(f"{info.name} may not run here: it has no contract.")
    if info.internal and info.resizes and base not in _SELFCHECKED:
        raise ProgramError(f"{info.name} may not run here: use the variant without `out`.")


def _nothing(call: Call) -> None:
    """No words needed."""


#: What a run parameter is while contracts look: no shape may hang on it anyway.
_GUESS: Final = {"float": 0.5, "int": 1, "bool": True, "complex": 1j}


def _filled(node: Node, left: Any) -> Any:
    if isinstance(node, Ref):
        return _meta(next(left))
    if isinstance(node, Many):
        return [_filled(leaf, left) for leaf in node.nodes]
    if isinstance(node, NumberValue):
        return _GUESS[node.kind]
    if isinstance(node, Draw):
        return None
    if isinstance(node, Const) and isinstance(node.value, torch.Tensor):
        return node.value.to(META)
    return node.value


@lru_cache(maxsize=1024)
def _meta(geometry: Geometry) -> torch.Tensor:
    return scratch(geometry, META)
