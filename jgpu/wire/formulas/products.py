"""Products of matrices, which lie row by row whatever their factors do."""

from collections.abc import Callable
from typing import Any, Final

from jgpu.wire.formulas.shapes import FLOATS, broadcast, laid_out, number, of_type, plain
from jgpu.wire.program import Geometry

__all__ = ["FORMULAS"]

_Made = tuple[Geometry] | None


def _product(first: Any, second: Any, dims: int) -> _Made:
    """The last two dimensions are multiplied, those before them are the same."""
    if not plain(first) or first.dtype not in FLOATS or not of_type(first.dtype, second):
        return None
    one, other = first.shape, second.shape
    if len(one) != dims or len(other) != dims or one[-1] != other[-2] or one[:-2] != other[:-2]:
        return None
    return (laid_out(first.dtype, (*one[:-1], other[-1])),)


def _matrices(first: Any, second: Any) -> _Made:
    return _product(first, second, 2)


def _batches(first: Any, second: Any) -> _Made:
    return _product(first, second, 3)


def _added(dims: int) -> Callable[..., _Made]:
    def formula(added: Any, first: Any, second: Any, *, beta: Any = 1, alpha: Any = 1) -> _Made:
        made = _product(first, second, dims)
        if made is None or not of_type(first.dtype, added):
            return None
        if not (number(beta, first.dtype) and number(alpha, first.dtype)):
            return None
        shape = made[0].shape
        return made if broadcast(added.shape, shape) == shape else None

    return formula


FORMULAS: Final[dict[str, Callable[..., _Made]]] = {
    "mm": _matrices,
    "bmm": _batches,
    "addmm": _added(2),
    "baddbmm": _added(3),
}
