"""cuDNN's attention: `_scaled_dot_product_cudnn_attention`, and what it calls.

The logarithms have a last dimension of 1, as torch's own meta kernel tells.
"""

from typing import Any

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


def _scores(
    query: Tensor, key: Tensor, bias: Tensor | None, dropout: float, causal: bool,
    scale: float | None, draw: Philox,
) -> Scores:  # fmt: skip
    """Causal masks are aligned at the first query and key."""
    if query.dtype not in (torch.float16, torch.bfloat16):
        raise RuntimeError("cuDNN attention takes tensors of float16 and bfloat16")
    shape = *query.shape[:3], key.shape[2]
    kept = masks.row_kept(draw, shape, dropout) if dropout != 0 else None
    seen = masks.seen(shape[2], shape[3], causal=causal)
    return Scores(given_scale(query, scale), bias, seen, kept, dropout)


def _laid_out(query: Tensor, shape: tuple[int, ...]) -> Tensor:
    """A tensor of this shape whose dimensions lie in the order of the query's."""
    if tuple(query.shape) == shape:
        return torch.empty_like(query)
    order = sorted(range(len(shape)), key=lambda dim: query.stride()[dim], reverse=True)
    return torch.empty_permuted(shape, order, dtype=query.dtype)


def _forward(
    draw: Philox, query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None, wanted: bool,
    dropout: float, causal: bool, scale: float | None,
) -> tuple[Any, ...]:  # fmt: skip
    scores = _scores(query, key, bias, dropout, causal, scale, draw)
    dtype = wide(query.dtype)
    made, sums, _ = forward(query.to(dtype), key.to(dtype), value.to(dtype), scores)
    out = _laid_out(query, (*query.shape[:3], value.shape[3])).copy_(made)
    seed, offset = (unset(dtype=torch.int64) for _ in range(2))
    if dropout != 0:
        seed, offset = (torch.tensor(each) for each in (draw.seed, draw.offset))
    rows = sums.unsqueeze(-1) if wanted else None
    return out, rows, None, None, query.shape[2], key.shape[2], seed, offset, None


def _increment(
    query: Tensor, key: Tensor, value: Tensor, bias: Any, wanted: bool, dropout: float, *rest: Any
) -> int:
    return masks.row_increment(query, key, dropout)


@drawing("_scaled_dot_product_cudnn_attention", increment=_increment)
def _attention(
    draw: Philox, query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None, wanted: bool,
    dropout: float, causal: bool, debug: bool, scale: float | None,
) -> tuple[Any, ...]:  # fmt: skip
    return _forward(draw, query, key, value, bias, wanted, dropout, causal, scale)


def _by_lengths_increment(query: Tensor, key: Tensor, *rest: Any) -> int:
    return masks.row_increment(query, key, rest[7])


@drawing("_cudnn_attention_forward", increment=_by_lengths_increment)
def _whole(
    draw: Philox, query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None, first_q: Any,
    first_k: Any, length: int, keys: int, wanted: bool, dropout: float, causal: bool,
    debug: bool, scale: float | None, *absent: Any,
) -> tuple[Any, ...]:  # fmt: skip
    if any(each is not None for each in (first_q, first_k, *absent)):
        raise NotImplementedError("Packed sequences are not computed here.")
    return _forward(draw, query, key, value, bias, wanted, dropout, causal, scale)


@kernel("_scaled_dot_product_cudnn_attention_backward", "_cudnn_attention_backward")
def _backward(
    grad: Tensor, query: Tensor, key: Tensor, value: Tensor, out: Tensor, sums: Tensor,
    seed: Tensor, offset: Tensor, bias: Tensor | None, first_q: Any, first_k: Any, length: int,
    keys: int, dropout: float, causal: bool, scale: float | None,
) -> tuple[Tensor, ...]:  # fmt: skip
    draw = masks.told(int(seed), int(offset))
    scores = _scores(query, key, bias, dropout, causal, scale, draw)
    dtype, tensors = wide(query.dtype), (query, key, value)
    found = backward(
        grad.to(dtype), (query.to(dtype), key.to(dtype), value.to(dtype)), out.to(dtype),
        sums.reshape(query.shape[:3]).to(dtype), scores,
    )  # fmt: skip
    return tuple(
        torch.empty_like(tensor).copy_(made)
        for tensor, made in zip(tensors, found[:3], strict=True)
    )
