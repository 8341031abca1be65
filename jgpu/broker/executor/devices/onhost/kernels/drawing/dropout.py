"""Dropout and what is near it: masks that a kernel draws beside what it computes.

Composites are here with what they become on CUDA, for on the host they become something else.
"""

import math
from typing import Any

import torch
from torch import Tensor

from jgpu.broker.executor.devices.onhost.kernels.drawing.fills import FILLS, fill_increment
from jgpu.broker.executor.devices.onhost.kernels.drawing.launches import fill, increment, numbers
from jgpu.broker.executor.devices.onhost.kernels.philox import Philox, uniforms, uniforms64
from jgpu.broker.executor.devices.onhost.kernels.tables import drawing, into, kernel

__all__ = ["drop", "kept"]


def kept(draw: Philox, like: Tensor, chance: float, dtype: torch.dtype) -> Tensor:
    """A mask laid out like a tensor: where its kernel keeps an element, with this chance."""
    mask = torch.empty_like(like, dtype=dtype)
    # floats for every type, doubles included
    return fill(mask, numbers(draw, like.numel(), uniforms) < chance)


def drop(draw: Philox, given: Tensor, probability: float) -> tuple[Tensor, Tensor]:
    """Result and mask of `native_dropout` in training."""
    if probability == 1 or not given.numel():
        return torch.zeros_like(given), torch.zeros_like(given, dtype=torch.bool)
    mask = kept(draw, given, 1 - probability, torch.bool)
    return _scaled(given, mask, 1 / (1 - probability)), mask


def _scaled(given: Tensor, mask: Tensor, scale: float) -> Tensor:
    wide = torch.float64 if given.dtype is torch.float64 else torch.float32
    made = given.to(wide) * mask * scale
    return torch.empty_like(given).copy_(made)


def _dropping(given: Tensor, probability: float, train: bool | None = True) -> int:
    drawn = train in (True, None) and probability < 1
    return increment(given.numel()) if drawn else 0


@drawing("native_dropout", increment=_dropping)
def _native_dropout(
    draw: Philox, given: Tensor, probability: float, train: bool | None
) -> tuple[Tensor, Tensor]:
    if train is False:
        return given.clone(), torch.ones_like(given, dtype=torch.bool)
    return drop(draw, given, probability)


@drawing("native_dropout.out",
         increment=lambda given, p, train, out0, out1: _dropping(given, p, train))  # fmt: skip
def _native_dropout_out(
    draw: Philox, given: Tensor, probability: float, train: bool | None, out0: Tensor, out1: Tensor
) -> tuple[Tensor, Tensor]:
    made, mask = _native_dropout(draw, given, probability, train)
    return into(out0, made), into(out1, mask)


@drawing("_fused_dropout", increment=lambda given, chance, generator: increment(given.numel()))
def _fused_dropout(
    draw: Philox, given: Tensor, chance: float, generator: Any
) -> tuple[Tensor, Tensor]:
    """The older form: the chance to be kept, and a mask of bytes."""
    mask = kept(draw, given, chance, torch.uint8)
    return _scaled(given, mask, 1 / chance), mask


@drawing("_fused_dropout.out", increment=lambda given, chance, *rest: increment(given.numel()))
def _fused_dropout_out(
    draw: Philox, given: Tensor, chance: float, generator: Any, out0: Tensor, out1: Tensor
) -> tuple[Tensor, Tensor]:
    made, mask = _fused_dropout(draw, given, chance, generator)
    return into(out0, made), into(out1, mask)


@kernel("_masked_scale")
def _masked_scale(given: Tensor, mask: Tensor, scale: float) -> Tensor:
    if mask.dtype is not torch.uint8:
        raise RuntimeError("mask should be torch.uint8 dtype")
    return _scaled(given, mask, scale)


# -- composites ----------------------------------------------------------------------------------


@drawing("dropout", increment=lambda given, p, train: _dropping(given, p) if train and p else 0)
def _dropout(draw: Philox, given: Tensor, probability: float, train: bool) -> Tensor:
    torch.dropout(torch.empty(0), probability, train)  # raises for what is no probability
    if probability == 0 or not train or not given.numel():
        return given
    return drop(draw, given, probability)[0]


def _noise_increment(given: Tensor, probability: float, train: bool) -> int:
    drawn = train and 0 < probability < 1 and given.numel()
    return fill_increment(given) if drawn else 0


def _noise(draw: Philox, shape: Tensor, probability: float) -> Tensor:
    made: Tensor = FILLS["bernoulli_.float"][0](draw, torch.empty_like(shape), 1 - probability)
    return made


def _features(given: Tensor) -> Tensor:
    """An outline of what feature dropout draws: a number for each feature of each sample."""
    if given.dim() < 2:
        raise RuntimeError("Feature dropout requires at least 2 dimensions in the input")
    shape = (*given.shape[:2], *(1 for _ in range(given.dim() - 2)))
    return torch.empty(shape, dtype=given.dtype)


def _noisy(draw: Philox, given: Tensor, probability: float, train: bool, whole: Tensor) -> Tensor:
    """Times noise, in a tensor of its own; what draws nothing is returned as it is."""
    if probability == 0 or not train or not given.numel():
        return given
    if probability == 1:
        return given * 0
    return given * _noise(draw, whole, probability).div_(1 - probability)


@drawing("feature_dropout", increment=lambda g, p, train: _noise_increment(_features(g), p, train))
def _feature_dropout(draw: Philox, given: Tensor, probability: float, train: bool) -> Tensor:
    return _noisy(draw, given, probability, train, _features(given))


def _alpha(draw: Philox, given: Tensor, probability: float, train: bool, whole: Tensor) -> Tensor:
    """Klambauer et al., "Self-normalizing neural networks" (2017), section 2."""
    if probability == 0 or not train or not given.numel():
        return given
    if probability == 1:
        return given * 0
    alpha = 1.7580993408473766
    a = 1 / math.sqrt((alpha * alpha * probability + 1) * (1 - probability))
    noise = _noise(draw, whole, probability)
    shift = noise.add(-1).mul_(alpha * a).add_(alpha * a * probability)
    return given * noise.mul_(a) + shift


@drawing("alpha_dropout", increment=_noise_increment)
def _alpha_dropout(draw: Philox, given: Tensor, probability: float, train: bool) -> Tensor:
    return _alpha(draw, given, probability, train, given)


@drawing(
    "feature_alpha_dropout",
    increment=lambda g, p, train: _noise_increment(_features(g), p, train),
)
def _feature_alpha(draw: Philox, given: Tensor, probability: float, train: bool) -> Tensor:
    return _alpha(draw, given, probability, train, _features(given))


def _noise_of(given: Tensor, featured: bool) -> Tensor:
    return _features(given) if featured else given


for _name, _apply, _featured in (
    ("dropout_", _noisy, False),
    ("feature_dropout_", _noisy, True),
    ("alpha_dropout_", _alpha, False),
    ("feature_alpha_dropout_", _alpha, True),
):

    def _into(
        draw: Philox, given: Tensor, p: float, train: bool, apply: Any = _apply,
        featured: bool = _featured,
    ) -> Tensor:  # fmt: skip
        made = apply(draw, given, p, train, _noise_of(given, featured))
        return given if made is given else given.copy_(made)

    def _counts(given: Tensor, p: float, train: bool, featured: bool = _featured) -> int:
        return _noise_increment(_noise_of(given, featured), p, train)

    drawing(_name, increment=_counts)(_into)


# -- leaky units with random slopes --------------------------------------------------------------


def _rrelu_increment(given: Tensor, noise: Tensor, low: Any, high: Any, train: bool,
                     *rest: Any) -> int:  # fmt: skip
    return fill_increment(given) if train else 0


@drawing("rrelu_with_noise.out", increment=_rrelu_increment)
def _rrelu_out(draw: Philox, *given: Any) -> Tensor:
    tensor, noise, low, high, train, _, out = given
    return _leaky(draw, tensor, noise, (low, high), train, out)


def _leaky(
    draw: Philox, given: Tensor, noise: Tensor, ends: tuple[float, float], train: bool, out: Tensor
) -> Tensor:
    low, high = ends
    if not train:
        return into(out, torch.nn.functional.leaky_relu(given, (low + high) / 2))
    double = given.dtype is torch.float64
    drawn = numbers(draw, given.numel(), uniforms64 if double else uniforms).view(given.shape)
    slopes = drawn.to(given.dtype).mul_(high - low).add_(low)
    noise.copy_(torch.where(given <= 0, slopes, 1))
    return into(out, torch.where(given <= 0, given * slopes, given))


@drawing("rrelu_with_noise", increment=_rrelu_increment)
def _rrelu(draw: Philox, given: Tensor, *rest: Any) -> Tensor:
    made = torch.empty_like(given, memory_format=torch.contiguous_format)
    _rrelu_out(draw, given, *rest, made)
    return made


@drawing("rrelu_with_noise_", increment=_rrelu_increment)
def _rrelu_in_place(draw: Philox, given: Tensor, *rest: Any) -> Tensor:
    _rrelu_out(draw, given, *rest, given)
    return given


@drawing("rrelu_with_noise_functional", increment=_rrelu_increment)
def _rrelu_functional(
    draw: Philox, given: Tensor, noise: Tensor, *rest: Any
) -> tuple[Tensor, Tensor]:
    written = noise.clone()
    return _rrelu(draw, given, written, *rest), written
