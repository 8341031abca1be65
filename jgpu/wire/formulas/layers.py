"""Layer norm and the negative log likelihood, with their gradients, of what lies row by row."""

from collections.abc import Callable
from typing import Any, Final

from jgpu.wire.formulas.shapes import FLOATS, elements, in_rows, laid_out, of_type, plain
from jgpu.wire.program import Geometry

__all__ = ["FORMULAS"]

_Made = tuple[Geometry | None, ...] | None

#: types whose statistics are of the same type
_WIDE: Final = frozenset({"float32", "float64"})


def _is_normed(given: Any, shape: Any, *affine: Any) -> bool:
    """Whether the last dimensions are of this shape, and weight and bias, if there are any."""
    if not plain(given) or given.dtype not in _WIDE or not elements(given.shape):
        return False
    if not isinstance(shape, list | tuple) or not shape:
        return False
    there = [each for each in affine if each is not None]
    if given.shape[-len(shape) :] != tuple(shape) or not of_type(given.dtype, *there):
        return False
    return in_rows(given, *there) and all(each.shape == tuple(shape) for each in there)


def _statistics(given: Geometry, shape: Any) -> Geometry:
    lead = given.shape[: len(given.shape) - len(shape)]
    return laid_out(given.dtype, (*lead, *(1,) * len(shape)))


def _layer_norm(given: Any, shape: Any, weight: Any, bias: Any, eps: Any) -> _Made:
    if not _is_normed(given, shape, weight, bias) or type(eps) not in (int, float):
        return None
    statistics = _statistics(given, shape)
    return laid_out(given.dtype, given.shape), statistics, statistics


def _layer_norm_gradient(
    grad: Any, given: Any, shape: Any, mean: Any, rstd: Any, weight: Any, bias: Any, mask: Any
) -> _Made:
    if not _is_normed(given, shape, weight, bias) or not of_type(given.dtype, grad, mean, rstd):
        return None
    statistics = _statistics(given, shape)
    if (mean.shape, rstd.shape, grad.shape) != (statistics.shape,) * 2 + (given.shape,):
        return None
    if not in_rows(grad, mean, rstd) or not isinstance(mask, list | tuple) or len(mask) != 3:
        return None
    if any(type(each) is not bool for each in mask):
        return None
    if any(asked and there is None for asked, there in zip(mask[1:], (weight, bias), strict=True)):
        return None
    of_affine = laid_out(given.dtype, shape)
    return (
        laid_out(given.dtype, given.shape) if mask[0] else None,
        of_affine if mask[1] else None,
        of_affine if mask[2] else None,
    )


def _is_classified(given: Any, target: Any, weight: Any, reduction: Any) -> bool:
    """Whether there is one class a row."""
    if not plain(given) or given.dtype not in FLOATS or len(given.shape) != 2:
        return False
    if not of_type("int64", target) or target.shape != given.shape[:1] or not in_rows(target):
        return False
    if weight is not None and not (of_type(given.dtype, weight) and in_rows(weight)):
        return False
    fits = weight is None or weight.shape == given.shape[1:]
    return fits and in_rows(given) and elements(given.shape) > 0 and reduction in (0, 1, 2)


def _likelihood(given: Any, target: Any, weight: Any, reduction: Any, ignored: Any) -> _Made:
    if not _is_classified(given, target, weight, reduction):
        return None
    shape = () if reduction else given.shape[:1]
    return laid_out(given.dtype, shape), laid_out(given.dtype, ())


def _likelihood_gradient(
    grad: Any, given: Any, target: Any, weight: Any, reduction: Any, ignored: Any, total: Any
) -> _Made:
    made = _likelihood(given, target, weight, reduction, ignored)
    if made is None or made[0] is None or not of_type(given.dtype, grad, total):
        return None
    fits = grad.shape == made[0].shape and total.shape == () and in_rows(grad)
    return (laid_out(given.dtype, given.shape),) if fits else None


FORMULAS: Final[dict[str, Callable[..., _Made]]] = {
    "native_layer_norm": _layer_norm,
    "native_layer_norm_backward": _layer_norm_gradient,
    "nll_loss_backward": _likelihood_gradient,
    "nll_loss_forward": _likelihood,
}
