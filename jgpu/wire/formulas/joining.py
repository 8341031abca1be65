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
    # one whose channels do not come last has the result lie row by row
    if at is None or not of_type(first.dtype, *tensors) or all(map(_is_picture, tensors)):
        return None
    rest = (*shape[:at], *shape[at + 1 :])
    if 0 in rest or any(len(each.shape) != len(shape) for each in tensors):
        return None
    if any((*each.shape[:at], *each.shape[at + 1 :]) != rest for each in tensors):
        return None
    shape[at] = sum(each.shape[at] for each in tensors)
    return (laid_out(first.dtype, shape),)


def _is_picture(given: Geometry) -> bool:
    """Whether its channels may come last, of which torch has the rules."""
    of_channels = len(given.shape) in (4, 5) and given.stride[1] <= given.stride[-1]
    return of_channels and not in_rows(given)


def _stacked(tensors: Any, dim: Any = 0) -> _Made:
    if not isinstance(tensors, list | tuple) or not tensors or not plain(*tensors):
        return None
    first = tensors[0]
    at, shape = dimension(dim, len(first.shape) + 1), list(first.shape)
    if at is None or not of_type(first.dtype, *tensors) or not in_rows(*tensors):
        return None
    if 0 in shape or any(each.shape != first.shape for each in tensors):
        return None
    return (laid_out(first.dtype, (*shape[:at], len(tensors), *shape[at:])),)


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


def _selected(given: Any, dim: Any, index: Any) -> _Made:
    """By one row of numbers, along any dimension."""
    if not plain(given, index) or index.dtype not in INDICES or len(index.shape) != 1:
        return None
    at = dimension(dim, len(given.shape))
    if at is None or not given.shape or 0 in given.shape or not in_rows(given, index):
        return None
    return (laid_out(given.dtype, (*given.shape[:at], *index.shape, *given.shape[at + 1 :])),)


def _gathered(given: Any, dim: Any, index: Any) -> _Made:
    if not plain(given) or not of_type("int64", index) or not in_rows(given, index):
        return None
    at = dimension(dim, len(given.shape))
    if at is None or len(index.shape) != len(given.shape) or 0 in (*given.shape, *index.shape):
        return None
    pairs = zip(index.shape, given.shape, strict=True)
    fits = all(k == at or size <= most for k, (size, most) in enumerate(pairs))
    return (laid_out(given.dtype, index.shape),) if fits else None


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


def _like(given: Any, *, dtype: Any = None, memory_format: Any = None, **where: Any) -> _Made:
    """A new tensor of the same sizes, of the device's own kind."""
    made = _copied(given, memory_format=memory_format)
    named = None if dtype is None else str(dtype).removeprefix("torch.")
    if made is None or where.keys() - {"device", "pin_memory"} or where.get("pin_memory"):
        return None
    if named is None:
        return made
    return (laid_out(named, given.shape),) if named in FLOATS | INDICES | {"bool"} else None


FORMULAS: Final[dict[str, Callable[..., _Made]]] = {
    **dict.fromkeys(("empty_like", "ones_like", "zeros_like"), _like),
    "cat": _joined,
    "clone": _copied,
    "embedding": _looked_up,
    "embedding_dense_backward": _lookup_gradient,
    "gather": _gathered,
    "index.Tensor": _indexed,
    "index_select": _selected,
    "stack": _stacked,
}
