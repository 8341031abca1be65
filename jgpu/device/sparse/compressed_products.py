"""Products of compressed sparse matrices and dense ones, with native torch's sums and gradients.

Terms are added up entry by entry, in the order of the pattern, and dot products as the vectors of
native CPU kernels add them (`dots`). Where native torch gives a dense gradient (`@`) and where one
of the same pattern (`torch.sparse.mm`), so does this.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch.autograd.function import once_differentiable

from jgpu.device.errors import refused
from jgpu.device.likenative.mixed import mixed_devices
from jgpu.device.sparse import coo
from jgpu.device.sparse.base import INSTEAD
from jgpu.device.sparse.compressed import (
    CompressedTensor,
    assembled,
    is_compressed,
    masked,
    title,
    transposed,
    values_of,
)
from jgpu.device.sparse.dots import dots
from jgpu.device.sparse.pattern import Pattern
from jgpu.device.tensor import DeviceTensor

__all__ = ["PRODUCTS"]

_HALF = (torch.bfloat16, torch.float16)


def _product(pattern: Pattern, values: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """A matrix of this pattern times a dense matrix."""
    (_, rows, columns), (high, wide) = pattern.grid, pattern.block
    lines, places = pattern.places()
    blocks = values.reshape(-1, high, wide)
    there = other.reshape(columns, wide, other.shape[1]).index_select(0, places)
    terms = blocks.bmm(there) if pattern.blocked else blocks * there
    room = terms.new_zeros((rows, high, other.shape[1])).index_add(0, lines, terms)
    return room.reshape(pattern.matrix[0], other.shape[1])


def _check(first: Any, second: Any) -> None:
    if is_compressed(first) and is_compressed(second):
        raise refused("products of two compressed tensors", INSTEAD)
    for each in (first, second):
        if is_compressed(each):
            if each._p.batch or each._p.dense:
                raise refused("products of compressed tensors that are no matrices", INSTEAD)
        elif not isinstance(each, DeviceTensor):
            if coo.is_ours(each):
                raise refused("this product of sparse tensors", INSTEAD)
            raise mixed_devices(each)
    if first.dim() != 2 or second.dim() != 2 or first.shape[1] != second.shape[0]:
        raise RuntimeError(
            f"mm: shapes {list(first.shape)} and {list(second.shape)} cannot be multiplied"
        )
    if first.dtype is not second.dtype:
        raise RuntimeError(f"mm: {first.dtype} and {second.dtype} are not of one dtype")


class _Matmul(torch.autograd.Function):
    """`sparse @ dense`, whose gradients are dense."""

    @staticmethod
    def forward(ctx: Any, whole: Any, other: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(whole, other)
        return _product(whole._p, whole._v, other)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        whole, other = ctx.saved_tensors
        first = grads[0] @ other.mH if ctx.needs_input_grad[0] else None
        second = None
        if ctx.needs_input_grad[1]:
            second = _matmul(transposed(whole, conjugate=True), grads[0])
        return first, second


class _Rmatmul(torch.autograd.Function):
    """`dense @ sparse`, whose gradients are dense."""

    @staticmethod
    def forward(ctx: Any, first: torch.Tensor, whole: Any) -> torch.Tensor:
        ctx.save_for_backward(first, whole)
        turned = transposed(whole)
        return _product(turned._p, turned._v, first.t()).t().contiguous()

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        first, whole = ctx.saved_tensors
        of_first = None
        if ctx.needs_input_grad[0]:
            of_first = _mm(grads[0], transposed(whole, conjugate=True))
        return of_first, first.mH @ grads[0] if ctx.needs_input_grad[1] else None


def _matmul(first: Any, second: Any) -> torch.Tensor:
    _check(first, second)
    made: torch.Tensor = _Matmul.apply(first, second)
    return made


def _mm(first: Any, second: Any) -> torch.Tensor:
    """`mm`, `mv`, `@`"""
    if is_compressed(first):
        if isinstance(second, torch.Tensor) and second.dim() == 1:
            return _matmul(first, second.unsqueeze(1)).squeeze(1)
        return _matmul(first, second)
    _check(first, second)
    made: torch.Tensor = _Rmatmul.apply(first, second)
    return made


def _sparse_mm(first: Any, second: Any, reduce: str | None = None) -> torch.Tensor:
    """`torch.sparse.mm`: gradients of the pattern; `reduce` puts the terms of a row together."""
    if not is_compressed(first):
        return _mm(first, second)
    _check(first, second)
    if reduce is None:
        return _product(first._p, values_of(first), second)
    if first.layout is not torch.sparse_csr:
        raise RuntimeError(f"sparse_mm_reduce: expect self to be SparseCsr, got {title(first)}")
    if reduce not in ("sum", "mean", "amax", "amin"):
        raise RuntimeError(f"reduce argument must be sum, mean, amax or amin, got {reduce}")
    function = _Extreme if reduce.startswith("am") else _ProductSum
    made: torch.Tensor = function.apply(first, second, reduce)
    return made


class _ProductSum(torch.autograd.Function):
    """Sum or mean of the terms of each row; half precision adds up in single."""

    @staticmethod
    def forward(ctx: Any, whole: Any, other: torch.Tensor, reduce: str) -> torch.Tensor:
        ctx.save_for_backward(whole, other)
        ctx.counts = None
        wide = torch.float32 if other.dtype in _HALF else other.dtype
        made = _product(whole._p, whole._v.to(wide), other.to(wide))
        if reduce == "mean":
            ctx.counts = whole._p.compressed.diff().clamp(min=1).to(wide)
            made = made / ctx.counts[:, None]
        return made.to(other.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Any) -> Any:
        whole, other = ctx.saved_tensors
        pattern, dtype = whole._p, other.dtype
        wide = torch.float32 if dtype in _HALF else dtype
        rows, columns = pattern.places()
        grad = grads[0].to(wide)
        counts = None if ctx.counts is None else ctx.counts.index_select(0, rows)
        first = second = None
        if ctx.needs_input_grad[0]:
            there = other.to(wide).index_select(0, columns)
            sums = dots(there, grad.index_select(0, rows), reduced=counts is None)
            sums = sums if counts is None else sums / counts
            first = assembled(pattern, sums.to(dtype))
        if ctx.needs_input_grad[1]:
            weights = whole._v.to(wide)
            weights = weights if counts is None else (weights / counts).to(dtype).to(wide)
            second = _product(pattern.turned(), weights, grad).to(dtype)
        return first, second, None


class _Extreme(torch.autograd.Function):
    """The first of the largest (or smallest) terms of each row; 0 where there is none."""

    @staticmethod
    def forward(ctx: Any, whole: Any, other: torch.Tensor, reduce: str) -> torch.Tensor:
        rows, columns = whole._p.places()
        terms = whole._v[:, None] * other.index_select(0, columns)
        shape, count = (whole.shape[0], other.shape[1]), terms.shape[0]
        there = rows[:, None].expand(terms.shape)
        best: torch.Tensor = terms.new_zeros(shape).scatter_reduce(
            0, there, terms, reduce, include_self=False
        )
        is_best = (terms == best.index_select(0, rows)) | terms.isnan()
        numbers = torch.arange(count, device=terms.device)[:, None].expand(terms.shape)
        numbers = numbers.where(is_best, count)
        chosen = numbers.new_full(shape, count).scatter_reduce(0, there, numbers, "amin")
        ctx.save_for_backward(whole, other, chosen)
        return best

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Any) -> Any:
        whole, other, chosen = ctx.saved_tensors
        entries, wide = whole._v.shape[0], other.shape[1]
        _, columns = whole._p.places()
        # rows without an entry look one behind the last
        column = torch.cat([columns, columns.new_zeros(1)])[chosen]
        across = torch.arange(wide, device=chosen.device).expand(chosen.shape)
        grad = grads[0].where(chosen < entries, 0)
        first = second = None
        if ctx.needs_input_grad[0]:
            terms = (other[column, across] * grad).reshape(-1)
            sums = terms.new_zeros(entries + 1).index_add(0, chosen.reshape(-1), terms)
            first = assembled(whole._p, sums[:entries])
        if ctx.needs_input_grad[1]:
            values = torch.cat([whole._v, whole._v.new_zeros(1)])
            terms = (values[chosen] * grad).reshape(-1)
            places = (column * wide + across).reshape(-1)
            second = terms.new_zeros(other.numel()).index_add(0, places, terms).view(other.shape)
        return first, second, None


def _plus(product: Callable[[Any, Any], torch.Tensor]) -> Callable[..., Any]:
    def addmm(base: Any, first: Any, second: Any, *, beta: Any = 1, alpha: Any = 1) -> Any:
        if not isinstance(base, DeviceTensor):
            raise refused("sums of a product and a sparse tensor", INSTEAD)
        made = _scaled(product(first, second), alpha)
        return made if beta == 0 else made + _scaled(base, beta)

    return addmm


def _scaled(tensor: Any, factor: Any) -> Any:
    return tensor if factor == 1 else tensor * factor


class _Sampled(torch.autograd.Function):
    """alpha (a @ b) at the entries of a matrix, and beta times these."""

    @staticmethod
    def forward(ctx: Any, whole: Any, a: Any, b: Any, beta: Any, alpha: Any) -> CompressedTensor:
        ctx.save_for_backward(a, b)
        ctx.pattern, ctx.beta, ctx.alpha = whole._p, beta, alpha
        values = whole._v * beta
        if a.numel() and b.numel():
            rows, columns = whole._p.places()
            sums = dots(a.index_select(0, rows), b.t().contiguous().index_select(0, columns))
            values = torch.add(values, sums, alpha=alpha)
        return assembled(whole._p, values)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        a, b = ctx.saved_tensors
        (grad,) = grads
        alpha, beta = ctx.alpha.conjugate(), ctx.beta.conjugate()
        at_entries = grad if is_compressed(grad) else masked(grad, ctx.pattern)
        of_a = of_b = None
        if ctx.needs_input_grad[1]:
            of_a = _scaled(_matmul(at_entries, b.mH), alpha)
        if ctx.needs_input_grad[2]:
            of_b = _scaled(_mm(a.mH, at_entries), alpha)
        return _scaled(grad, beta), of_a, of_b, None, None


def _sampled_addmm(
    whole: Any, a: Any, b: Any, *, beta: Any = 1, alpha: Any = 1, out: Any = None
) -> CompressedTensor:
    """`torch.sparse.sampled_addmm`"""
    if out is not None:
        raise refused("out= of a sparse tensor", "use what it returns")
    if whole.layout is not torch.sparse_csr:
        raise RuntimeError(
            f"sampled_addmm: Expected result to have sparse csr layout, but got {title(whole)}"
        )
    for dense in (a, b):
        if not isinstance(dense, DeviceTensor):
            raise mixed_devices(dense)
    if whole._p.batch or whole._p.dense:
        raise refused("sampled_addmm with batches or dense parts", "give it one matrix at a time")
    fits = a.dim() == b.dim() == 2 and a.shape[1] == b.shape[0]
    if not fits or (a.shape[0], b.shape[1]) != tuple(whole.shape):
        raise RuntimeError(
            f"sampled_addmm: {list(a.shape)} times {list(b.shape)} is not of shape "
            f"{list(whole.shape)}"
        )
    if not a.dtype == b.dtype == whole.dtype:
        raise RuntimeError("sampled_addmm: Expected all matrices to have the same dtype")
    made: CompressedTensor = _Sampled.apply(whole, a, b, beta, alpha)
    return made


#: by the name of a method or a function
PRODUCTS: dict[str, Callable[..., Any]] = {
    "mm": _mm,
    "mv": _mm,
    "matmul": _mm,
    "__matmul__": _mm,
    "__rmatmul__": lambda second, first: _mm(first, second),
    "_sparse_mm": _sparse_mm,
    "addmm": _plus(_mm),
    "_sparse_addmm": _plus(_sparse_mm),
    "sparse_sampled_addmm": _sampled_addmm,
}
