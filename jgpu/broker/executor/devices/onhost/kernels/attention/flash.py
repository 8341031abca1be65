"""Flash attention: `_scaled_dot_product_flash_attention`, `_flash_attention_forward`, backwards."""

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
from jgpu.broker.executor.devices.onhost.kernels.unset import unset

__all__: list[str] = []

_MOST_FEATURES: Final = 256
_ROUNDED: Final = 128


def _check(query: Tensor, key: Tensor, value: Tensor) -> None:
    """What the kernel looks at first, in its words."""
    if query.dtype not in (torch.float16, torch.bfloat16):
        raise RuntimeError("FlashAttention only support fp16 and bf16 data type")
    if key.dtype is not query.dtype or value.dtype is not query.dtype:
        raise RuntimeError("query, key and value must have the same dtype")
    if any(each.stride(-1) != 1 for each in (query, key, value)):
        raise RuntimeError("Input tensor must have contiguous last dimension")
    if query.shape[-1] % 8:
        raise RuntimeError("head_size must be a multiple of 8, this is ensured by padding!")
    if query.shape[-1] > _MOST_FEATURES:
        raise RuntimeError("FlashAttention forward only supports head dimension at most 256")


def _scores(
    query: Tensor, key: Tensor, dropout: float, causal: bool, scale: float | None,
    draw: Philox, window: tuple[int | None, int | None] = (None, None),
) -> Scores:  # fmt: skip
    """Causal masks are aligned at the last query and key."""
    length, keys = query.shape[2], key.shape[2]
    before, after = (None if each is None or each < 0 else each for each in window)
    kept = None
    if dropout > 0:
        kept = masks.flash_kept(draw, (*query.shape[:3], keys), dropout)
    seen = masks.seen(length, keys, causal=causal, last=True, before=before, after=after)
    return Scores(given_scale(query, scale), None, seen, kept, dropout)


def _forward(
    draw: Philox, query: Tensor, key: Tensor, value: Tensor, dropout: float, causal: bool,
    debug: bool, scale: float | None, window: tuple[int | None, int | None] = (None, None),
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Output, logarithms, seed and offset, nothing, and weights with what was dropped negative."""
    _check(query, key, value)
    if debug and not dropout > 0:
        raise RuntimeError("return_softmax is only supported when p_dropout > 0.0")
    scores = _scores(query, key, dropout, causal, scale, draw, window)
    dtype = wide(query.dtype)
    made, sums, weights = forward(query.to(dtype), key.to(dtype), value.to(dtype), scores)
    state = unset(2, dtype=torch.int64)
    if dropout > 0:
        state[0], state[1] = draw.seed, draw.offset
    shown = torch.empty(0, dtype=query.dtype)
    if debug and scores.kept is not None:
        length, keys = (-(-each // _ROUNDED) * _ROUNDED for each in weights.shape[2:])
        shown = unset(*query.shape[:2], length, keys, dtype=query.dtype)
        signed = torch.where(scores.kept, weights, -weights)
        shown[:, :, : weights.shape[2], : weights.shape[3]] = signed
    out = torch.empty_like(query).copy_(made)
    unused = unset(dtype=torch.uint64)
    return out, sums.to(torch.float32), state.view(torch.uint64), unused, shown


def _backward(
    grad: Tensor, tensors: tuple[Tensor, Tensor, Tensor], out: Tensor, sums: Tensor,
    dropout: float, causal: bool, state: Tensor, scale: float | None,
    window: tuple[int | None, int | None] = (None, None),
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    query, key, value = tensors
    _check(query, key, value)
    seed, offset = state.view(torch.int64).tolist()
    scores = _scores(query, key, dropout, causal, scale, masks.told(seed, offset), window)
    dtype = wide(query.dtype)
    found = backward(
        grad.to(dtype), (query.to(dtype), key.to(dtype), value.to(dtype)), out.to(dtype),
        sums.to(dtype), scores,
    )  # fmt: skip
    of_query, of_key, of_value = (
        torch.empty_like(tensor).copy_(made)
        for tensor, made in zip(tensors, found[:3], strict=True)
    )
    return of_query, of_key, of_value


def _increment(query: Tensor, key: Tensor, value: Tensor, dropout: float, *rest: Any) -> int:
    return masks.flash_increment(query, dropout)


@drawing("_scaled_dot_product_flash_attention", increment=_increment)
def _attention(
    draw: Philox, query: Tensor, key: Tensor, value: Tensor, dropout: float, causal: bool,
    debug: bool, scale: float | None,
) -> tuple[Any, ...]:  # fmt: skip
    out, sums, *rest = _forward(draw, query, key, value, dropout, causal, debug, scale)
    return (out, sums, None, None, query.shape[2], key.shape[2], *rest)


@kernel("_scaled_dot_product_flash_attention_backward")
def _attention_backward(
    grad: Tensor, query: Tensor, key: Tensor, value: Tensor, out: Tensor, sums: Tensor,
    first_q: Tensor | None, first_k: Tensor | None, length: int, keys: int, dropout: float,
    causal: bool, state: Tensor, unused: Tensor, scale: float | None,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    return _backward(grad, (query, key, value), out, sums, dropout, causal, state, scale)


# -- the same by lengths first -------------------------------------------------------------------


def _dense(*absent: Any) -> None:
    if any(each is not None for each in absent):
        raise NotImplementedError("Packed sequences, pages and slopes are not computed here.")


def _lengths_increment(query: Tensor, *rest: Any) -> int:
    return masks.flash_increment(query.transpose(1, 2), rest[6])


@drawing("_flash_attention_forward", increment=_lengths_increment)
def _by_lengths(
    draw: Philox, query: Tensor, key: Tensor, value: Tensor, first_q: Any, first_k: Any,
    length: int, keys: int, dropout: float, causal: bool, debug: bool, scale: float | None,
    before: int | None, after: int | None, *absent: Any,
) -> tuple[Any, ...]:  # fmt: skip
    _dense(first_q, first_k, *absent)
    turned = query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2)
    out, *rest = _forward(draw, *turned, dropout, causal, debug, scale, (before, after))
    return (out.transpose(1, 2), *rest)


@kernel("_flash_attention_backward")
def _by_lengths_backward(
    grad: Tensor, query: Tensor, key: Tensor, value: Tensor, out: Tensor, sums: Tensor,
    first_q: Any, first_k: Any, length: int, keys: int, dropout: float, causal: bool,
    state: Tensor, unused: Tensor, scale: float | None, before: int | None, after: int | None,
) -> tuple[Tensor, ...]:  # fmt: skip
    _dense(first_q, first_k)
    query, key, value = (each.transpose(1, 2) for each in (query, key, value))
    found = _backward(
        grad.transpose(1, 2), (query, key, value), out.transpose(1, 2), sums, dropout, causal,
        state, scale, (before, after),
    )  # fmt: skip
    return tuple(each.transpose(1, 2) for each in found)
