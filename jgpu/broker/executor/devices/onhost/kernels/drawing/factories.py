"""Random tensors that are made: `rand`, `randn`, `randint`, `randperm`, with their `_like` forms.

A factory makes its tensor on the host, whatever device it is asked for.
"""

from collections.abc import Sequence
from typing import Any, Final

import torch
from torch import Tensor

from jgpu.broker.executor.devices.onhost.kernels.drawing.fills import FILLS, doubles
from jgpu.broker.executor.devices.onhost.kernels.drawing.launches import (
    increment,
    numbers,
    rounded,
)
from jgpu.broker.executor.devices.onhost.kernels.philox import Philox
from jgpu.broker.executor.devices.onhost.kernels.tables import (
    Function,
    drawing,
    into,
    named,
)

__all__: list[str] = []

#: What fills, and by what parameters, for each factory's base name.
_FILLED: Final[dict[str, tuple[str, tuple[Any, ...]]]] = {
    "rand": ("uniform_", (0.0, 1.0)),
    "randn": ("normal_", (0.0, 1.0)),
}


def _dtype(given: Any) -> torch.dtype:
    """A dtype argument; schemas write the default of `randint` as a number."""
    if given is None:
        return torch.get_default_dtype()
    return torch.int64 if given == 4 else given


class _Factory:
    """One overload: which tensor it makes, what fills that, and by what parameters."""

    def __init__(self, op: torch._ops.OpOverload) -> None:
        self._op = op
        self.__name__ = str(op)
        self._places = {each.name: place for place, each in enumerate(op._schema.arguments)}

    def increment(self, *given: Any) -> int:
        """What a call moves the generator on by; a bound that is a tensor is read."""
        count, parameters = self._filled(given, 1)
        return int(count(self._made(given, "meta"), *parameters))

    def __call__(self, draw: Philox, *given: Any) -> Tensor:
        fill, parameters = self._filled(given, 0)
        made = self._get(given, "out")
        if made is None:
            made = self._made(given, "cpu")
        elif made.shape != self._shape(given):
            made.resize_(self._shape(given))
        fill(draw, made, *parameters)
        tensor: Tensor = made
        return tensor

    def _get(self, given: Sequence[Any], name: str) -> Any:
        return given[self._places[name]] if name in self._places else None

    def _shape(self, given: Sequence[Any]) -> torch.Size:
        like = self._get(given, "self")
        return torch.Size(self._get(given, "size") if like is None else like.shape)

    def _filled(self, given: Sequence[Any], which: int) -> tuple[Function, tuple[Any, ...]]:
        base = self._op._schema.name[6:].removesuffix("_like")
        if base == "normal":
            parameters = self._get(given, "mean"), self._get(given, "std")
            return FILLS["normal_"][which], parameters
        if base in _FILLED:
            name, fixed = _FILLED[base]
            return FILLS[name][which], fixed
        low, high = self._get(given, "low") or 0, self._get(given, "high")
        return FILLS["random_.from"][which], (int(low), int(high))

    def _made(self, given: Sequence[Any], device: str) -> Tensor:
        out, like = self._get(given, "out"), self._get(given, "self")
        if out is not None:
            return torch.empty(self._shape(given), dtype=out.dtype, device=device)
        if like is None:
            dtype = _dtype(self._get(given, "dtype"))
            return torch.empty(self._shape(given), dtype=dtype, device=device)
        chosen = self._get(given, "memory_format")
        return torch.empty_like(
            like,
            dtype=self._get(given, "dtype"),
            device=device,
            memory_format=torch.preserve_format if chosen is None else chosen,
        )


def _overloads(base: str) -> list[str]:
    packet = getattr(torch.ops.aten, base)
    names = [name for name in packet.overloads() if "names" not in name]
    return [base if name == "default" else f"{base}.{name}" for name in names]


def _register() -> None:
    names = [
        *("normal.float_float", "normal.float_float_out"),
        *(
            name
            for base in ("rand", "randn", "randint", "rand_like", "randn_like", "randint_like")
            for name in _overloads(base)
        ),
    ]
    for name in names:
        for op in named(name):
            factory = _Factory(op)
            drawing(name, increment=factory.increment)(factory)


_register()


# -- permutations --------------------------------------------------------------------------------


def _permuting(count: int, *rest: Any) -> int:
    """Keys, and as many numbers again, by which CUDA puts elements of equal keys in order."""
    return increment(count, 2) + rounded(count)


@drawing("randperm", "randperm.generator", increment=_permuting)
def _permutation(draw: Philox, count: int, *rest: Any) -> Tensor:
    """Elements in the order of their keys of 64 bits, of which no two are equal."""
    dtype = _dtype(rest[-4])
    torch.randperm(min(count, 0), dtype=dtype)  # raises for what is no count, or no type
    return numbers(draw, count, doubles).argsort(stable=True).to(dtype)


@drawing("randperm.out", "randperm.generator_out", increment=_permuting)
def _permutation_out(draw: Philox, count: int, *rest: Any) -> Tensor:
    out: Tensor = rest[-1]
    return into(out, _permutation(draw, count, out.dtype, None, None, None))
