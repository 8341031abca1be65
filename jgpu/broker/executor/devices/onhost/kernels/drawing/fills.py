"""Tensors filled in place by a distribution: `uniform_`, `normal_`, `random_` and their kin.

The formulas are those of PyTorch's CUDA kernels (`TransformationHelper.h`), computed in float32, or
in float64 for doubles. What CUDA refuses is refused in the words of the CPU's own op, which looks
at parameters before it looks at elements.
"""

import math
from collections.abc import Callable
from typing import Any, Final

import torch
from torch import Tensor

from jgpu.broker.executor.devices.onhost.kernels.asserts import device_assert
from jgpu.broker.executor.devices.onhost.kernels.drawing.launches import (
    fill,
    increment,
    numbers,
    rounded,
)
from jgpu.broker.executor.devices.onhost.kernels.philox import (
    Philox,
    normals,
    normals64,
    uniforms,
    uniforms64,
)
from jgpu.broker.executor.devices.onhost.kernels.tables import Function

__all__ = ["FILLS", "PROBABILITIES", "doubles", "fill_increment"]

#: what the kernel for a tensor of probabilities asks for, whatever the tensor's size
PROBABILITIES: Final = rounded(10)


def _checked(out: Tensor, name: str, *parameters: Any) -> None:
    """Raise what the op raises of these parameters for a tensor of that type."""
    getattr(torch.empty(0, dtype=out.dtype), name)(*parameters)


def fill_increment(out: Tensor, *parameters: Any) -> int:
    """What filling a tensor moves a generator on by."""
    return increment(out.numel(), 2 if out.dtype is torch.float64 else 4)


def _wide(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype is torch.float64 else torch.float32


def _uniforms(draw: Philox, out: Tensor) -> Tensor:
    return numbers(draw, out.numel(), uniforms64 if out.dtype is torch.float64 else uniforms)


def _normals(draw: Philox, out: Tensor) -> Tensor:
    return numbers(draw, out.numel(), normals64 if out.dtype is torch.float64 else normals)


def _uniform(draw: Philox, out: Tensor, low: float, high: float) -> Tensor:
    _checked(out, "uniform_", low, high)
    if out.is_complex():
        _uniform(draw, torch.view_as_real(out), low, high)
        return out
    ends = torch.tensor([low, high], dtype=out.dtype)
    span = (ends[1] - ends[0]).to(_wide(out.dtype))
    made = _uniforms(draw, out).mul_(span).add_(ends[0]).to(out.dtype)
    # drawn from (0, 1], wanted of [low, high)
    return fill(out, torch.where(made == ends[1], ends[0], made))


def _normal(draw: Philox, out: Tensor, mean: float, deviation: float) -> Tensor:
    _checked(out, "normal_", mean, deviation)
    if out.is_complex():
        return _complex_normal(draw, out, mean, deviation)
    return fill(out, _normals(draw, out).mul_(deviation).add_(mean))


def _complex_normal(draw: Philox, out: Tensor, mean: float, deviation: float) -> Tensor:
    """Both parts have half of the variance, and the mean is the real part's."""
    parts = torch.view_as_real(out)
    fill(parts, _normals(draw, parts).mul_(deviation / math.sqrt(2)))
    parts.select(-1, 0).add_(mean)
    return out


def _log_normal(draw: Philox, out: Tensor, mean: float, deviation: float) -> Tensor:
    _checked(out, "log_normal_", mean, deviation)
    return fill(out, _normals(draw, out).mul_(deviation).add_(mean).exp_())


def _exponential(draw: Philox, out: Tensor, rate: float) -> Tensor:
    _checked(out, "exponential_", rate)
    found = _uniforms(draw, out)
    half = torch.finfo(found.dtype).eps / 2
    # never 0: the logarithm of what rounds to 1 is half a unit below
    found = torch.where(found >= 1 - half, -half, found.log())
    return fill(out, found.mul_(-1.0 / rate))


def _cauchy(draw: Philox, out: Tensor, median: float, sigma: float) -> Tensor:
    _checked(out, "cauchy_", median, sigma)
    found = _uniforms(draw, out)
    unit = torch.finfo(found.dtype).eps
    found = found.clamp_(unit, 1 - unit).sub_(0.5).mul_(math.pi).tan_()
    return fill(out, found.mul_(sigma).add_(median))


def _geometric(draw: Philox, out: Tensor, probability: float) -> Tensor:
    _checked(out, "geometric_", probability)
    found = _uniforms(draw, out)
    rest = torch.tensor(1.0 - probability, dtype=found.dtype)
    return fill(out, found.log_().div_(rest.log()).ceil_())


def _bernoulli(draw: Philox, out: Tensor, probability: float) -> Tensor:
    _checked(out, "bernoulli_", probability)
    return fill(out, _uniforms(draw, out) < probability)


def _bernoulli_of(draw: Philox, out: Tensor, probabilities: Tensor) -> Tensor:
    """Four elements a thread, numbered in the order of their indices."""
    if not probabilities.is_floating_point():
        raise RuntimeError(
            "expected probabilities tensor to have floating type, got "
            f"{torch.typename(probabilities)}"
        )
    wanted = probabilities.to(_wide(out.dtype)).expand_as(out)
    device_assert((wanted >= 0) & (wanted <= 1), "0 <= p4 && p4 <= 1")
    count = out.numel()
    found = uniforms(draw.blocks(torch.arange(-(-count // 4)), 0)).flatten()[:count]
    return out.copy_(found.view(out.shape) <= wanted)


# -- whole numbers -------------------------------------------------------------------------------

#: ranges from here on are drawn from 64 bits, for which a block serves two elements
_WIDE_RANGE: Final = 1 << 28
_WHOLE: Final = 1 << 64


def _words(blocks: Tensor) -> Tensor:
    return blocks


def doubles(blocks: Tensor) -> Tensor:
    """Two numbers of 64 bits a block, as int64 holds them."""
    pairs = blocks.unflatten(-1, (2, 2))
    joined: Tensor = (pairs[..., 0] << 32) | pairs[..., 1]
    return joined


def _remainder(values: Tensor, span: int) -> Tensor:
    """`values % span` where values are 64 bits without a sign, and `span` is at most 2 ** 64."""
    if span == _WHOLE:
        return values
    signed = span - _WHOLE if span >= _WHOLE // 2 else span
    if signed < 0:  # less than twice the span: at most one subtraction
        return torch.where((values < 0) & (values >= signed), values - signed, values)
    half = ((values >> 1) & (_WHOLE // 2 - 1)).div(span, rounding_mode="floor")
    rest = values - (half << 1) * span
    return torch.where((rest < 0) | (rest >= span), rest - span, rest)


def _span(dtype: torch.dtype, first: int | None, last: int | None) -> tuple[int, int]:
    """The first number, and how many there are, for `random_(from, to)`."""
    low = 0 if first is None else first
    if last is not None:
        return low, last - low
    if dtype is torch.bool:
        return low, 2 - low
    if dtype.is_floating_point:
        return low, (1 << _digits(dtype)) + 1 - low
    if low == torch.iinfo(torch.int64).min:
        return low, _WHOLE
    return low, torch.iinfo(dtype).max - low + 1


def _digits(dtype: torch.dtype) -> int:
    """Bits of a floating point number's significand, with the one that is not stored."""
    return 1 - int(math.log2(torch.finfo(dtype).eps))


def _between(draw: Philox, out: Tensor, first: int, last: int | None) -> Tensor:
    _checked(out, "random_", first, last)
    low, span = _span(out.dtype, first, last)
    made = numbers(draw, out.numel(), doubles if span >= _WIDE_RANGE else _words)
    return fill(out, _remainder(made, span) + low)


def _between_increment(out: Tensor, first: int, last: int | None, *rest: Any) -> int:
    _, span = _span(out.dtype, first, last)
    return increment(out.numel(), 2 if span >= _WIDE_RANGE else 4)


def _below(draw: Philox, out: Tensor, last: int) -> Tensor:
    return _between(draw, out, 0, last)


def _below_increment(out: Tensor, last: int, *rest: Any) -> int:
    return _between_increment(out, 0, last)


def _any(draw: Philox, out: Tensor) -> Tensor:
    """Of all that the type holds exactly, from 0 on."""
    _checked(out, "random_")
    many = 2 if out.dtype is torch.bool else _span(out.dtype, 0, None)[1]
    made = numbers(draw, out.numel(), doubles if _takes_64(out.dtype) else _words)
    return fill(out, _remainder(made, many))


def _takes_64(dtype: torch.dtype) -> bool:
    return dtype in (torch.float64, torch.int64)


def _any_increment(out: Tensor, *rest: Any) -> int:
    return increment(out.numel(), 2 if _takes_64(out.dtype) else 4)


def _parts_increment(out: Tensor, *rest: Any) -> int:
    return fill_increment(torch.view_as_real(out) if out.is_complex() else out)


def _fixed(out: Tensor, *rest: Any) -> int:
    return PROBABILITIES


#: In-place ops by name: what fills a tensor, and what that moves the generator on by. Both take the
#: parameters in the order of the schema, without the generator.
FILLS: Final[dict[str, tuple[Function, Callable[..., int]]]] = {
    "uniform_": (_uniform, _parts_increment),
    "normal_": (_normal, _parts_increment),
    "log_normal_": (_log_normal, fill_increment),
    "exponential_": (_exponential, fill_increment),
    "cauchy_": (_cauchy, fill_increment),
    "geometric_": (_geometric, fill_increment),
    "bernoulli_.float": (_bernoulli, fill_increment),
    "bernoulli_.Tensor": (_bernoulli_of, _fixed),
    "random_.from": (_between, _between_increment),
    "random_.to": (_below, _below_increment),
    "random_": (_any, _any_increment),
}
