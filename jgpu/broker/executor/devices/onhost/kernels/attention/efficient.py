"""Memory-efficient attention: its forms for heads first and for lengths first, and backwards.

Seed and offset come back on the host, as in eager CUDA; rows of logarithms are filled up to a
multiple of 32 with infinity.
"""

import math
from typing import Any, Final

import torch
from torch import Tensor

from jgpu.broker.executor.devices.onhost.kernels.attention import masks
from jgpu.broker.executor.devices.onhost.kernels.attention.core import (
    Scores,
    backward,
    forward,
    given_scale,
    wide,
)
from jgpu.broker.executor.devices.onhost.kernels.philox import Philox
from jgpu.broker.executor.devices.onhost.kernels.tables import drawing, kernel

__all__: list[str] = []

_TYPES: Final = (torch.float32, torch.float16, torch.bfloat16)
_ALIGNED_SUMS, _ALIGNED_BIAS = 32, 16
#: which causal mask, by its number: none, from the first, from the last
_NONE, _FIRST, _LAST = range(3)


def _check(*tensors: Tensor) -> None:
    if any(each.dtype not in _TYPES for each in tensors):
        raise RuntimeError("Only fp32, half & bf16 supported at the moment")
    if any(each.stride(-1) != 1 for each in tensors):
        raise RuntimeError("Input tensor must have contiguous last dimension")


def _scores(
    query: Tensor, key: Tensor, bias: Tensor | None, dropout: float, mask: int,
    scale: float | None, draw: Philox, window: int | None,
) -> Scores:  # fmt: skip
    length, keys = query.shape[2], key.shape[2]
    before = None if not window or window < 0 else window - 1
    seen = masks.seen(length, keys, causal=mask != _NONE, last=mask == _LAST, before=before)
    kept = masks.row_kept(draw, (*query.shape[:3], keys), dropout) if dropout != 0 else None
    return Scores(given_scale(query, scale), bias, seen, kept, dropout)


def _forward(
    draw: Philox, query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None, dropout: float,
    mask: int, wanted: bool, scale: float | None, window: int | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """The output lies by lengths first, whatever the inputs do."""
    _check(query, key, value)
    scores = _scores(query, key, bias, dropout, mask, scale, draw, window)
    dtype = wide(query.dtype)
    made, sums, _ = forward(query.to(dtype), key.to(dtype), value.to(dtype), scores)
    batch, heads, length, _ = query.shape
    out = torch.empty(batch, length, heads, value.shape[3], dtype=query.dtype).transpose(1, 2)
    padded = -(-length // _ALIGNED_SUMS) * _ALIGNED_SUMS if wanted else 0
    rows = torch.full((batch, heads, padded), math.inf)
    if wanted:
        rows[:, :, :length] = sums
    drawn = (draw.seed, draw.offset) if dropout != 0 else (0, 0)
    seed, offset = (torch.tensor(each, dtype=torch.int64) for each in drawn)
    return out.copy_(made), rows, seed, offset


def _backward(
    grad: Tensor, tensors: tuple[Tensor, Tensor, Tensor], bias: Tensor | None, out: Tensor,
    sums: Tensor, dropout: float, state: tuple[Tensor, Tensor], mask: int, scale: float | None,
    window: int | None = None,
) -> tuple[Tensor, ...]:  # fmt: skip
    query, key, value = tensors
    _check(query, key, value)
    draw = masks.told(int(state[0]), int(state[1]))
    scores = _scores(query, key, bias, dropout, mask, scale, draw, window)
    dtype = wide(query.dtype)
    return backward(
        grad.to(dtype), (query.to(dtype), key.to(dtype), value.to(dtype)), out.to(dtype),
        sums[:, :, : query.shape[2]].to(dtype), scores,
    )  # fmt: skip


def _of_bias(bias: Tensor, found: Tensor) -> Tensor:
    """The gradient of what was added: rows of a multiple of 16 elements, cut to their width."""
    width = bias.shape[-1]
    padded = -(-width // _ALIGNED_BIAS) * _ALIGNED_BIAS
    made = torch.zeros(*bias.shape[:-1], padded, dtype=bias.dtype)[..., :width]
    return made.copy_(found)


def _increment(
    query: Tensor, key: Tensor, value: Tensor, bias: Any, wanted: bool, dropout: float, *rest: Any
) -> int:
    return masks.row_increment(query, key, dropout)


@drawing("_scaled_dot_product_efficient_attention", increment=_increment)
def _attention(
    draw: Philox, query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None, wanted: bool,
    dropout: float, causal: bool, scale: float | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    mask = _FIRST if causal else _NONE
    return _forward(draw, query, key, value, bias, dropout, mask, wanted, scale)


@kernel("_scaled_dot_product_efficient_attention_backward")
def _attention_backward(
    grad: Tensor, query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None, out: Tensor,
    sums: Tensor, seed: Tensor, offset: Tensor, dropout: float, wanted: list[bool], causal: bool,
    scale: float | None,
) -> tuple[Tensor | None, ...]:  # fmt: skip
    tensors, mask = (query, key, value), _FIRST if causal else _NONE
    found = _backward(grad, tensors, bias, out, sums, dropout, (seed, offset), mask, scale)
    made = [
        torch.empty_permuted(tensor.shape, (0, 2, 1, 3), dtype=tensor.dtype).copy_(of)
        for tensor, of in zip(tensors, found[:3], strict=True)
    ]
    of_bias = _of_bias(bias, found[3]) if bias is not None and wanted[3] else None
    return (*made, of_bias)


# -- by lengths first ----------------------------------------------------------------------------


def _dense(*absent: Any) -> None:
    if any(each is not None for each in absent):
        raise NotImplementedError("Packed sequences are not computed here.")


def _lengths_increment(query: Tensor, key: Tensor, *rest: Any) -> int:
    return masks.row_increment(query.transpose(1, 2), key.transpose(1, 2), rest[6])


@drawing("_efficient_attention_forward", increment=_lengths_increment)
def _by_lengths(
    draw: Philox, query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None, first_q: Any,
    first_k: Any, length: Any, keys: Any, dropout: float, mask: int, wanted: bool,
    scale: float | None, each_keys: Any, window: int | None,
) -> tuple[Any, ...]:  # fmt: skip
    _dense(first_q, first_k, each_keys)
    turned = query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2)
    out, *rest = _forward(draw, *turned, bias, dropout, mask, wanted, scale, window)
    return (out.transpose(1, 2), *rest, query.shape[1], key.shape[1])


@kernel("_efficient_attention_backward")
def _by_lengths_backward(
    grad: Tensor, query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None, out: Tensor,
    first_q: Any, first_k: Any, length: int, keys: int, sums: Tensor, dropout: float,
    seed: Tensor, offset: Tensor, mask: int, wanted: bool, scale: float | None, splits: Any,
    window: int | None, shared: bool,
) -> tuple[Tensor | None, ...]:  # fmt: skip
    _dense(first_q, first_k)
    tensors = (query, key, value)
    turned = query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2)
    *found, of_scores = _backward(
        grad.transpose(1, 2), turned, bias, out.transpose(1, 2), sums, dropout, (seed, offset),
        mask, scale, window,
    )  # fmt: skip
    if shared:
        one = torch.empty((*query.shape[:2], 3, *query.shape[2:]), dtype=query.dtype)
        places = list(one.unbind(2))
    else:
        places = [torch.empty_like(tensor) for tensor in tensors]
    made = [place.copy_(of.transpose(1, 2)) for place, of in zip(places, found, strict=True)]
    of_bias = _of_bias(bias, of_scores) if bias is not None and wanted else None
    return (*made, of_bias)


@kernel("_fill_mem_eff_dropout_mask_")
def _fill_mask(mask: Tensor, dropout: float, seed: int, offset: int) -> Tensor:
    return mask.copy_(masks.row_uniforms(seed, offset, mask.numel()).view(mask.shape))
