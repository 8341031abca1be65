"""Elementwise ops on tensors of one type, with each other and with numbers."""

from collections.abc import Callable
from typing import Any, Final

from jgpu.wire.formulas.shapes import (
    FLOATS,
    broadcast,
    elements,
    in_order,
    in_rows,
    laid_out,
    number,
    of_type,
    plain,
)
from jgpu.wire.program import Geometry

__all__ = ["FORMULAS"]

_Made = tuple[Geometry] | None

_SUMMED: Final = FLOATS | {"int64"}
_UNARY: Final = (
    "abs", "ceil", "cos", "erf", "exp", "expm1", "floor", "gelu", "log", "log1p", "neg",
    "reciprocal", "relu", "rsqrt", "sgn", "sigmoid", "sign", "silu", "sin", "sqrt", "tanh",
)  # fmt: skip
_GRADIENTS: Final = (
    "gelu_backward", "leaky_relu_backward", "sigmoid_backward", "silu_backward",
    "softplus_backward", "tanh_backward", "threshold_backward",
)  # fmt: skip


def _together(*given: Geometry, dtype: str = "") -> Geometry | None:
    """Return the result's geometry of an elementwise op; types are not checked."""
    first = given[0]
    dtype = dtype or first.dtype
    if not elements(first.shape):  # kernels differ in how these lie
        return None
    if all(each.shape == first.shape and each.stride == first.stride for each in given):
        if in_order(first):
            return laid_out(dtype, first.shape)
        permuted = _is_permuted(first)
        return Geometry(dtype, first.shape, first.stride) if permuted else None
    if not all(map(in_order, given)):
        return None
    shape = broadcast(*(each.shape for each in given))
    return laid_out(dtype, shape) if shape is not None and elements(shape) else None


def _is_permuted(geometry: Geometry) -> bool:
    """Whether it has no gaps, in another order of dimensions, and each of them is stepped in."""
    expected = 1
    for step, size in sorted(zip(geometry.stride, geometry.shape, strict=True)):
        if size < 2 or step != expected:
            return False
        expected *= size
    return True


def _one(made: Geometry | None) -> _Made:
    return None if made is None else (made,)


def _unary(given: Any, *, approximate: str = "none") -> _Made:
    if not plain(given) or given.dtype not in FLOATS or approximate not in ("none", "tanh"):
        return None
    return _one(_together(given))


def _with_number(given: Any, value: Any = 0, scale: Any = 1) -> _Made:
    if not plain(given) or given.dtype not in _SUMMED:
        return None
    if not (number(value, given.dtype) and number(scale, given.dtype)):
        return None
    return _one(_together(given))


def _with_float(given: Any, value: Any = 0, *_: Any) -> _Made:
    return _with_number(given, value) if plain(given) and given.dtype in FLOATS else None


def _two(given: Any, other: Any, *, alpha: Any = 1) -> _Made:
    if not plain(given) or given.dtype not in _SUMMED or not number(alpha, given.dtype):
        return None
    if of_type(given.dtype, other):
        return _one(_together(given, other))
    return _one(_together(given)) if number(other, given.dtype) else None


def _two_floats(given: Any, other: Any) -> _Made:
    return _two(given, other) if plain(given) and given.dtype in FLOATS else None


def _compared(given: Any, other: Any) -> _Made:
    if not plain(given) or given.dtype not in _SUMMED:
        return None
    if of_type(given.dtype, other):
        return _one(_together(given, other, dtype="bool"))
    return _one(_together(given, dtype="bool")) if number(other, given.dtype) else None


def _gradient(grad: Any, given: Any, *_: Any, approximate: str = "none") -> _Made:
    """Of a unary op: of one shape with what it was given."""
    if not plain(grad, given) or grad.dtype not in FLOATS or grad.dtype != given.dtype:
        return None
    return _one(_together(grad, given)) if grad.shape == given.shape else None


def _chosen(mask: Any, given: Any, other: Any) -> _Made:
    if not of_type("bool", mask) or not plain(given) or not of_type(given.dtype, other):
        return None
    return _one(_together(given, other, mask)) if given.dtype in _SUMMED else None


def _filled(given: Any, mask: Any, value: Any) -> _Made:
    if not of_type("bool", mask) or not plain(given) or given.dtype not in _SUMMED:
        return None
    fits = number(value, given.dtype) and in_rows(given)
    if not fits or broadcast(given.shape, mask.shape) != given.shape:
        return None
    return (laid_out(given.dtype, given.shape),)


def _clamped(given: Any, least: Any = None, most: Any = None) -> _Made:
    bounds = [bound for bound in (least, most) if bound is not None]
    if not bounds or not plain(given) or given.dtype not in FLOATS:
        return None
    return _unary(given) if all(number(bound, given.dtype) for bound in bounds) else None


def _opposite(given: Any) -> _Made:
    return _one(_together(given)) if of_type("bool", given) else None


def _both(given: Any, other: Any) -> _Made:
    return _one(_together(given, other)) if of_type("bool", given, other) else None


def _difference(given: Any, target: Any, reduction: Any = 1) -> _Made:
    """A loss of two tensors of one shape."""
    if not plain(given) or not of_type(given.dtype, target) or given.dtype not in FLOATS:
        return None
    if reduction not in (0, 1, 2) or given.shape != target.shape or not elements(given.shape):
        return None
    if not in_rows(given, target):
        return None
    return (laid_out(given.dtype, () if reduction else given.shape),)


def _bent(given: Any, target: Any, reduction: Any = 1, at: Any = 1.0) -> _Made:
    """A loss that is another one beyond some difference, which torch wants to be above 0."""
    fits = plain(given) and number(at, given.dtype) and at > 0
    return _difference(given, target, reduction) if fits else None


def _bent_gradient(grad: Any, given: Any, target: Any, reduction: Any, at: Any) -> _Made:
    made = _bent(given, target, reduction, at)
    return None if made is None else _difference_gradient(grad, given, target, reduction)


def _difference_gradient(grad: Any, given: Any, target: Any, reduction: Any) -> _Made:
    made = _difference(given, target, reduction)
    if made is None or not of_type(given.dtype, grad) or grad.shape != made[0].shape:
        return None
    return (laid_out(given.dtype, given.shape),) if in_rows(grad) else None


FORMULAS: Final[dict[str, Callable[..., _Made]]] = {
    **dict.fromkeys(_UNARY, _unary),
    **dict.fromkeys(("add.Tensor", "sub.Tensor", "mul.Tensor"), _two),
    **dict.fromkeys(("div.Tensor", "maximum", "minimum"), _two_floats),
    **dict.fromkeys(("add.Scalar", "sub.Scalar", "mul.Scalar", "rsub.Scalar"), _with_number),
    **dict.fromkeys(
        ("clamp_max", "clamp_min", "div.Scalar", "leaky_relu", "pow.Tensor_Scalar", "softplus"),
        _with_float,
    ),
    **dict.fromkeys(("bitwise_not", "logical_not"), _opposite),
    **dict.fromkeys(
        ("bitwise_and.Tensor", "bitwise_or.Tensor", "logical_and", "logical_or"), _both
    ),
    **{
        f"{name}.{kind}": _compared
        for name in ("eq", "ne", "lt", "le", "gt", "ge")
        for kind in ("Tensor", "Scalar")
    },
    **dict.fromkeys(_GRADIENTS, _gradient),
    "clamp": _clamped,
    "masked_fill.Scalar": _filled,
    "mse_loss": _difference,
    "mse_loss_backward": _difference_gradient,
    **dict.fromkeys(("huber_loss", "smooth_l1_loss"), _bent),
    **dict.fromkeys(("huber_loss_backward", "smooth_l1_loss_backward"), _bent_gradient),
    "where.self": _chosen,
}
