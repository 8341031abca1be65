"""Words of the formulas: how tensors lie, what their sizes give together, which types are plain."""

from collections.abc import Sequence
from typing import Any, Final

from jgpu.wire.program import Geometry

__all__ = [
    "FLOATS",
    "INDICES",
    "MOST_ELEMENTS",
    "broadcast",
    "contiguous_stride",
    "dimension",
    "elements",
    "in_order",
    "in_rows",
    "laid_out",
    "number",
    "of_type",
    "plain",
]

#: types that elementwise ops, products and sums return as they are given
FLOATS: Final = frozenset({"float32", "float64", "float16", "bfloat16"})
INDICES: Final = frozenset({"int64", "int32"})
#: larger results are left to torch, which knows where its numbers overflow
MOST_ELEMENTS: Final = 1 << 40

Sizes = tuple[int, ...]


def contiguous_stride(shape: Sequence[int]) -> Sizes:
    """Row-major strides as torch computes them (a size of 0 counts as 1)."""
    stride: list[int] = []
    step = 1
    for size in reversed(shape):
        stride.append(step)
        step *= max(size, 1)
    return tuple(reversed(stride))


def elements(shape: Sequence[int]) -> int:
    """How many elements there are."""
    count = 1
    for size in shape:
        count *= size
    return count


def laid_out(dtype: str, shape: Sequence[int]) -> Geometry:
    """A new tensor, row by row."""
    return Geometry(dtype, tuple(shape), contiguous_stride(shape))


def plain(*given: Any) -> bool:
    """Whether these are tensors without lazy bits."""
    return all(type(each) is Geometry and not each.bits for each in given)


def of_type(dtype: str, *given: Any) -> bool:
    """Whether these are tensors of this type, without lazy bits."""
    return all(type(each) is Geometry and not each.bits and each.dtype == dtype for each in given)


def in_rows(*given: Geometry) -> bool:
    """Whether these lie row by row, dimensions of one element and empty ones included."""
    return all(each.stride == contiguous_stride(each.shape) for each in given)


def in_order(geometry: Geometry) -> bool:
    """Whether what an elementwise op makes of it lies row by row.

    So it does where each dimension that is stepped in takes longer steps than the next one (or
    as long ones, and has as many elements), unless there are no gaps: then the strides stay as
    they are, also those that lead nowhere.
    """
    if in_rows(geometry):
        return True
    pairs = list(zip(geometry.stride, geometry.shape, strict=True))
    gaps = sum((size - 1) * step for step, size in pairs) >= elements(geometry.shape) > 0
    repeated = any(size > 1 and not step for step, size in pairs)
    stepped = [pair for pair in pairs if pair[0]]
    return (gaps or repeated) and stepped == sorted(stepped, reverse=True)


def broadcast(*shapes: Sizes) -> Sizes | None:
    """The shape that these have together; None where they do not fit."""
    longest = max(map(len, shapes))
    made = [1] * longest
    for shape in shapes:
        for k, size in enumerate(shape, longest - len(shape)):
            if size == made[k] or size == 1:
                continue
            if made[k] != 1:
                return None
            made[k] = size
    return tuple(made)


def dimension(dim: Any, count: int) -> int | None:
    """The dimension, counted from the first one of so many; None where there is none such."""
    if type(dim) is not int or not -count <= dim < count:
        return None
    return dim % count


def number(value: Any, dtype: str) -> bool:
    """Whether it is a number that leaves tensors of this type as they are."""
    return type(value) is int or (type(value) is float and dtype in FLOATS)
