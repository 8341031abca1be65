"""The random ops of one tensor: in place, with a result of their own, and with `out`."""

from collections.abc import Callable
from typing import Any, Final

import torch
from torch import Tensor

from jgpu.broker.executor.devices.onhost.kernels.drawing.fills import (
    FILLS,
    PROBABILITIES,
    fill_increment,
)
from jgpu.broker.executor.devices.onhost.kernels.philox import Philox
from jgpu.broker.executor.devices.onhost.kernels.tables import Function, drawing, into

__all__: list[str] = []

#: Ops that fill a tensor like their first argument, by the name of the one in place; `.out` too.
_FUNCTIONAL: Final = {
    "uniform_": ("uniform", "uniform.out"),
    "normal_": ("normal_functional", "normal.out"),
    "log_normal_": ("log_normal", "log_normal.out"),
    "exponential_": ("exponential", "exponential.out"),
    "cauchy_": ("cauchy", "cauchy.out"),
    "geometric_": ("geometric", "geometric.out"),
    "bernoulli_.float": ("bernoulli.p", "bernoulli.float_out"),
    "bernoulli_.Tensor": ("bernoulli.Tensor", "bernoulli.Tensor_out"),
    "random_.from": ("random.from", "random.from_out"),
    "random_.to": ("random.to", "random.to_out"),
    "random_": ("random", "random.out"),
}


def _in_place(fill: Function) -> Function:
    def function(draw: Philox, out: Tensor, *rest: Any) -> Tensor:
        fill(draw, out, *rest[:-1])
        return out

    return function


def _like(fill: Function) -> Function:
    def function(draw: Philox, like: Tensor, *rest: Any) -> Tensor:
        made = torch.empty_like(like)
        fill(draw, made, *rest[:-1])
        return made

    return function


def _out(fill: Function) -> Function:
    def function(draw: Philox, like: Tensor, *rest: Any) -> Tensor:
        *parameters, _, given = rest
        out: Tensor = given
        if out.shape != like.shape:
            out.resize_(like.shape)
        fill(draw, out, *parameters)
        return out

    return function


def _without_generator(count: Callable[..., int]) -> Function:
    def function(out: Tensor, *rest: Any) -> int:
        return count(out, *rest[:-1])

    return function


def _of_out(count: Callable[..., int]) -> Function:
    def function(like: Tensor, *rest: Any) -> int:
        *parameters, _, out = rest
        return count(torch.empty(like.shape, dtype=out.dtype, device="meta"), *parameters)

    return function


for _name, (_fill, _count) in FILLS.items():
    _functional, _with_out = _FUNCTIONAL[_name]
    drawing(_name, increment=_without_generator(_count))(_in_place(_fill))
    drawing(_functional, increment=_without_generator(_count))(_like(_fill))
    drawing(_with_out, increment=_of_out(_count))(_out(_fill))


# -- a distribution whose parameters are tensors -------------------------------------------------


@drawing("bernoulli", increment=lambda self, generator: PROBABILITIES)
def _bernoulli(draw: Philox, self: Tensor, generator: Any) -> Tensor:
    made = torch.empty_like(self)
    FILLS["bernoulli_.Tensor"][0](draw, made, self)
    return made


@drawing("bernoulli.out", increment=lambda self, generator, out: PROBABILITIES)
def _bernoulli_out(draw: Philox, self: Tensor, generator: Any, out: Tensor) -> Tensor:
    return into(out, _bernoulli(draw, self, generator))


def _parts(mean: Any, deviation: Any) -> tuple[torch.Size, torch.dtype]:
    """Shape and type of what `normal` of these parameters returns."""
    tensors = [each for each in (mean, deviation) if isinstance(each, Tensor)]
    shape = torch.broadcast_shapes(*(each.shape for each in tensors))
    return shape, tensors[0].dtype


def _normal_increment(mean: Any, deviation: Any, generator: Any, out: Any = None) -> int:
    shape, dtype = _parts(mean, deviation)
    return fill_increment(
        torch.empty(shape, dtype=dtype if out is None else out.dtype, device="meta")
    )


def _checked(mean: Any, deviation: Any) -> None:
    """What the op refuses; of a tensor's elements CUDA looks at the least, as here."""
    low = deviation.min() if isinstance(deviation, Tensor) and deviation.numel() else deviation
    if not isinstance(low, Tensor):
        torch.normal(torch.empty(0), float(low))
    elif bool(low < 0):
        raise RuntimeError("normal expects all elements of std >= 0.0")


@drawing("normal.Tensor_float", "normal.float_Tensor", "normal.Tensor_Tensor",
         increment=_normal_increment)  # fmt: skip
def _normal(draw: Philox, mean: Any, deviation: Any, generator: Any) -> Tensor:
    shape, dtype = _parts(mean, deviation)
    made: Tensor = _normal_out(draw, mean, deviation, generator, torch.empty(shape, dtype=dtype))
    return made


@drawing("normal.Tensor_float_out", "normal.float_Tensor_out", "normal.Tensor_Tensor_out",
         increment=_normal_increment)  # fmt: skip
def _normal_out(draw: Philox, mean: Any, deviation: Any, generator: Any, out: Tensor) -> Tensor:
    _checked(mean, deviation)
    shape, _ = _parts(mean, deviation)
    if out.shape != shape:
        out.resize_(shape)
    FILLS["normal_"][0](draw, out, 0.0, 1.0)
    return out.mul_(deviation).add_(mean)
