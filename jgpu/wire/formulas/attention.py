"""The host's attention, which lays out what it returns as the queries lie, and its gradient."""

from collections.abc import Callable
from typing import Any, Final

from jgpu.wire.formulas.shapes import contiguous_stride, elements, of_type, plain
from jgpu.wire.program import Geometry

__all__ = ["FORMULAS"]

_Made = tuple[Geometry, ...] | None

#: by type of queries, keys and values, that of their logarithms of sums
_SUMS: Final = {
    "float32": "float32", "float64": "float64", "float16": "float32", "bfloat16": "float32",
}  # fmt: skip


def _heads_inside(dtype: str, shape: tuple[int, ...]) -> Geometry:
    """Of dimensions batch, heads, positions (and width): each position has all its heads."""
    swapped = shape[0], shape[2], shape[1], *shape[3:]
    stride = contiguous_stride(swapped)
    return Geometry(dtype, shape, (stride[0], stride[2], stride[1], *stride[3:]))


def _as_it_lies(given: Geometry) -> Geometry | None:
    """Strides as they are where there are no gaps, else the same order without gaps."""
    steps = sorted(
        ((step, size) for step, size in zip(given.stride, given.shape, strict=True) if size > 1)
    )
    expected = 1
    for step, size in steps:
        if step != expected:
            break
        expected *= size
    if expected == elements(given.shape):
        return given
    if len({*given.stride, 0}) != len(given.stride) + 1:
        return None  # which of two equal steps goes first is the kernel's affair
    made, step = dict.fromkeys(given.stride, 1), 1
    for each, size in sorted(zip(given.stride, given.shape, strict=True)):
        made[each] = step
        step *= size
    return Geometry(given.dtype, given.shape, tuple(made[each] for each in given.stride))


def _fits(query: Any, key: Any, value: Any, mask: Any) -> bool:
    if not plain(query) or query.dtype not in _SUMS or not of_type(query.dtype, key, value):
        return False
    if mask is not None or len(query.shape) != 4 or key.shape != value.shape:
        return False
    batch, heads, positions, width = query.shape
    kept = len(key.shape) == 4 and (batch, heads, width) == (*key.shape[:2], key.shape[3])
    return kept and 0 not in query.shape and 0 not in key.shape and positions > 0


def _attention(
    query: Any,
    key: Any,
    value: Any,
    dropout_p: Any = 0.0,
    is_causal: Any = False,
    *,
    attn_mask: Any = None,
    scale: Any = None,
) -> _Made:
    if not _fits(query, key, value, attn_mask):
        return None
    made = _as_it_lies(query)
    if made is None:
        return None
    made = Geometry(made.dtype, made.shape, made.stride)  # its offset is that of a new tensor
    return made, _heads_inside(_SUMS[query.dtype], query.shape[:3])


def _attention_gradient(
    grad: Any,
    query: Any,
    key: Any,
    value: Any,
    out: Any,
    sums: Any,
    dropout_p: Any,
    is_causal: Any,
    *,
    attn_mask: Any = None,
    scale: Any = None,
) -> _Made:
    if not _fits(query, key, value, attn_mask) or not of_type(query.dtype, grad, out):
        return None
    if grad.shape != query.shape or out.shape != query.shape:
        return None
    if not of_type(_SUMS[query.dtype], sums) or sums.shape != query.shape[:3]:
        return None
    made = [_heads_inside(each.dtype, each.shape) for each in (query, key, value)]
    return made[0], made[1], made[2]


FORMULAS: Final[dict[str, Callable[..., _Made]]] = {
    "_scaled_dot_product_flash_attention_for_cpu": _attention,
    "_scaled_dot_product_flash_attention_for_cpu_backward": _attention_gradient,
}
