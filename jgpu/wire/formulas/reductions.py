"""Sums, means, extremes and softmax, of what lies row by row."""

from collections.abc import Callable
from typing import Any, Final

from jgpu.wire.formulas.shapes import (
    FLOATS,
    dimension,
    elements,
    in_rows,
    laid_out,
    number,
    of_type,
    plain,
)
from jgpu.wire.program import Geometry

__all__ = ["FORMULAS"]

_Made = tuple[Geometry, ...] | None

#: types that are counted in the largest of them
_COUNTED: Final = frozenset({"bool", "int32", "int64"})


def _is_plain(given: Any) -> bool:
    return plain(given) and given.dtype in FLOATS and in_rows(given)


def _without(shape: tuple[int, ...], dims: Any, keepdim: Any) -> tuple[int, ...] | None:
    """The shape without these dimensions; no dimensions are all of them."""
    if dims is None or (isinstance(dims, list | tuple) and not dims):
        dims = tuple(range(len(shape)))
    if not isinstance(dims, list | tuple) or type(keepdim) is not bool:
        return None
    found = {dimension(dim, len(shape)) for dim in dims}
    if None in found or len(found) != len(dims):
        return None
    if keepdim:
        return tuple(1 if k in found else size for k, size in enumerate(shape))
    return tuple(size for k, size in enumerate(shape) if k not in found)


def _added_up(given: Any, dim: Any = None, keepdim: Any = False, *, dtype: Any = None) -> _Made:
    if not _is_plain(given) or dtype is not None:
        return None
    shape = _without(given.shape, dim, keepdim)
    return None if shape is None else (laid_out(given.dtype, shape),)


def _all(given: Any, *, dtype: Any = None) -> _Made:
    return _added_up(given, dtype=dtype)


def _sum(given: Any, dim: Any = None, keepdim: Any = False, *, dtype: Any = None) -> _Made:
    """Of numbers of any type; what is no floating one is counted in the largest."""
    if not plain(given) or given.dtype not in _COUNTED:
        return _added_up(given, dim, keepdim, dtype=dtype)
    shape = _without(given.shape, dim, keepdim) if in_rows(given) and dtype is None else None
    return None if shape is None else (laid_out("int64", shape),)


def _spread(given: Any, dim: Any = None, *, correction: Any = None, keepdim: Any = False) -> _Made:
    """Of what has more elements than are taken off their count, else torch warns."""
    made = _added_up(given, dim, keepdim)
    if made is None or not elements(made[0].shape):
        return None
    less = 1 if correction is None else correction
    if not number(less, given.dtype) or isinstance(less, bool):
        return None
    return made if elements(given.shape) // elements(made[0].shape) > less else None


def _running(given: Any, dim: Any, *, dtype: Any = None) -> _Made:
    return _softmax(given, dim, False) if dtype is None else None


def _of_truths(given: Any, dim: Any = None, keepdim: Any = False) -> _Made:
    if not of_type("bool", given) or not in_rows(given) or type(dim) not in (int, type(None)):
        return None
    shape = _without(given.shape, None if dim is None else (dim,), keepdim)
    return None if shape is None else (laid_out("bool", shape),)


def _extreme(given: Any, dim: Any = (), keepdim: Any = False) -> _Made:
    return _added_up(given, dim, keepdim) if plain(given) and elements(given.shape) else None


def _place(given: Any, dim: Any = None, keepdim: Any = False) -> _Made:
    made = _extreme(given, () if dim is None else (dim,), keepdim)
    return None if made is None else (laid_out("int64", made[0].shape),)


def _extreme_and_place(given: Any, dim: Any, keepdim: Any = False) -> _Made:
    made, place = _extreme(given, (dim,), keepdim), _place(given, dim, keepdim)
    return None if made is None or place is None else (*made, *place)


def _softmax(given: Any, dim: Any, half_to_float: Any) -> _Made:
    if not _is_plain(given) or half_to_float is not False:
        return None
    fits = dimension(dim, len(given.shape)) is not None
    return (laid_out(given.dtype, given.shape),) if fits else None


def _softmax_gradient(grad: Any, output: Any, dim: Any, dtype: Any) -> _Made:
    made = _softmax(grad, dim, False)
    fits = made is not None and of_type(grad.dtype, output) and in_rows(output)
    same = fits and output.shape == grad.shape and str(dtype) == f"torch.{grad.dtype}"
    return made if same else None


FORMULAS: Final[dict[str, Callable[..., _Made]]] = {
    "mean.dim": _added_up,
    "mean": _all,
    "sum.dim_IntList": _sum,
    "sum": lambda given, *, dtype=None: _sum(given, dtype=dtype),
    **dict.fromkeys(("std.correction", "var.correction"), _spread),
    **dict.fromkeys(("cumsum", "cumprod"), _running),
    **dict.fromkeys(("all", "all.dim", "any", "any.dim"), _of_truths),
    "logsumexp": lambda given, dim, keepdim=False: _extreme(given, dim, keepdim) if dim else None,
    **dict.fromkeys(("amax", "amin"), _extreme),
    **dict.fromkeys(("argmax", "argmin"), _place),
    **dict.fromkeys(("max.dim", "min.dim"), _extreme_and_place),
    **dict.fromkeys(("max", "min"), lambda given: _extreme(given)),
    **dict.fromkeys(("_softmax", "_log_softmax"), _softmax),
    **dict.fromkeys(("_softmax_backward_data", "_log_softmax_backward_data"), _softmax_gradient),
}
