"""Sums, means, extremes and softmax, of what lies row by row."""

from collections.abc import Callable
from typing import Any, Final

from jgpu.wire.formulas.shapes import FLOATS, dimension, elements, in_rows, laid_out, of_type, plain
from jgpu.wire.program import Geometry

__all__ = ["FORMULAS"]

_Made = tuple[Geometry, ...] | None


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
    **dict.fromkeys(("sum.dim_IntList", "mean.dim"), _added_up),
    **dict.fromkeys(("sum", "mean"), _all),
    **dict.fromkeys(("amax", "amin"), _extreme),
    **dict.fromkeys(("argmax", "argmin"), _place),
    **dict.fromkeys(("max.dim", "min.dim"), _extreme_and_place),
    **dict.fromkeys(("max", "min"), lambda given: _extreme(given)),
    **dict.fromkeys(("_softmax", "_log_softmax"), _softmax),
    **dict.fromkeys(("_softmax_backward_data", "_log_softmax_backward_data"), _softmax_gradient),
}
