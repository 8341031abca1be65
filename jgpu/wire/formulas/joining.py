"""Tensors put together, looked up by rows, and copied."""

from collections.abc import Callable
from typing import Any, Final

from jgpu.wire.formulas.shapes import FLOATS, INDICES, dimension, in_rows, laid_out, of_type, plain
from jgpu.wire.program import Geometry

__all__ = ["FORMULAS"]

_Made = tuple[Geometry] | None

_CONTIGUOUS: Final = "torch.contiguous_format"


def _joined(tensors: Any, dim: Any = 0) -> _Made:
    if not isinstance(tensors, list | tuple) or not tensors or not plain(*tensors):
        return None
    first = tensors[0]
    at, shape = dimension(dim, len(first.shape)), list(first.shape)
    # one that lies row by row has the result lie so; else channels might come last
    if at is None or not of_type(first.dtype, *tensors) or not any(map(in_rows, tensors)):
        return None
    rest = (*shape[:at], *shape[at + 1 :])
    if 0 in rest or any(len(each.shape) != len(shape) for each in tensors):
        return None
    if any((*each.shape[:at], *each.shape[at + 1 :]) != rest for each in tensors):
        return None
    shape[at] = sum(each.shape[at] for each in tensors)
    return (laid_out(first.dtype, shape),)


def _looked_up(
    weight: Any, indices: Any, padding_idx: Any = -1, scaled: Any = False, sparse: Any = False
) -> _Made:
    if not plain(weight, indices) or weight.dtype not in FLOATS or len(weight.shape) != 2:
        return None
    if indices.dtype not in INDICES:
        return None
    return (laid_out(weight.dtype, (*indices.shape, weight.shape[1])),)


def _indexed(given: Any, indices: Any) -> _Made:
    """By one tensor of numbers, along the first dimension."""
    if not isinstance(indices, list | tuple) or len(indices) != 1 or not plain(given, *indices):
        return None
    index = indices[0]
    if index.dtype not in INDICES or not given.shape or not in_rows(given, index):
        return None
    return (laid_out(given.dtype, (*index.shape, *given.shape[1:])),) if given.shape[0] else None


def _lookup_gradient(grad: Any, indices: Any, rows: Any, padding_idx: Any, scaled: Any) -> _Made:
    if not plain(grad, indices) or grad.dtype not in FLOATS or indices.dtype not in INDICES:
        return None
    if type(rows) is not int or rows < 1 or grad.shape[:-1] != indices.shape or not grad.shape:
        return None
    return (laid_out(grad.dtype, (rows, grad.shape[-1])),) if in_rows(grad, indices) else None


def _copied(given: Any, *, memory_format: Any = None) -> _Made:
    if not plain(given) or not (in_rows(given) or str(memory_format) == _CONTIGUOUS):
        return None
    kept = memory_format is None or str(memory_format) in (_CONTIGUOUS, "torch.preserve_format")
    return (laid_out(given.dtype, given.shape),) if kept else None


FORMULAS: Final[dict[str, Callable[..., _Made]]] = {
    "cat": _joined,
    "clone": _copied,
    "embedding": _looked_up,
    "embedding_dense_backward": _lookup_gradient,
    "index.Tensor": _indexed,
}
