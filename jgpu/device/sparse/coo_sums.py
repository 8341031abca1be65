"""Sums and products of sparse tensors in coordinate form."""

import math
from collections.abc import Callable
from typing import Any

import torch

from jgpu.device import current
from jgpu.device.errors import refused
from jgpu.device.sparse.base import INSTEAD
from jgpu.device.sparse.coo import (
    SparseTensor,
    coalesced,
    extents_of,
    is_ours,
    joined,
    make,
    places_of,
    replaced,
    scalar_name,
    to_dense,
)
from jgpu.device.tensor import CUDA, DeviceTensor

__all__ = ["added", "addmm", "masked", "mm", "total", "total_backward"]


def added(*, sign: int = 1, in_place: bool = False) -> Callable[..., Any]:
    """Sums: sparse and sparse give sparse, dense and sparse give dense."""

    def apply(first: Any, second: Any, *, alpha: Any = 1) -> Any:
        factor = sign * alpha
        if not is_ours(second):
            raise RuntimeError(
                "add(sparse, dense) is not supported. Use add(dense, sparse) instead."
            )
        if is_ours(first):
            made = _merged(first, second, factor)
            if in_place and not torch.can_cast(made.dtype, first.dtype):
                raise RuntimeError(
                    f"Can't convert result type {scalar_name(made.dtype)} to output "
                    f"{scalar_name(first.dtype)} in add operation"
                )
            return replaced(first, made) if in_place else made
        if isinstance(first, torch.Tensor) and not isinstance(first, DeviceTensor):
            raise refused("sums of a host's tensor and a sparse one of the device", INSTEAD)
        return _onto(first if in_place else first.clone(), second, factor)

    return apply


def _merged(first: Any, second: Any, factor: Any) -> SparseTensor:
    """The sum of two sparse tensors, with the entries that native kernels leave.

    CUDA's kernel appends the entries of the second to those of the first. That of the host walks
    along both lists and joins entries of one place where it meets them at the same time. If an
    operand is not coalesced, such as the gradient of an embedding that is used twice, this depends
    on the indices, which are downloaded.
    """
    _check(first, second, factor)
    dtype = torch.result_type(first._v, second._v)
    one, other = first._v.to(dtype), second._v.to(dtype)
    if not second._v.shape[0]:
        return make(first._i, one, first.shape, first._c)
    if not first._v.shape[0]:
        return make(second._i, _scaled(other, factor), first.shape, second._c)
    if first._i.shape[0] != second._i.shape[0]:
        raise RuntimeError(
            "add: expected 'self' and 'other' to have same density, but 'self' has "
            f"{first._i.shape[0]} sparse dimensions while 'other' has {second._i.shape[0]} sparse "
            "dimensions"
        )
    both = first._c and second._c
    on_cuda = current.session.device_facts().has_cuda_kernels
    contiguous = first._v.is_contiguous() and second._v.is_contiguous()
    if on_cuda or not contiguous:
        return _one_behind_the_other(first, second, one, _scaled(other, factor))
    if _same_memory(first._i, second._i):
        return make(first._i, torch.add(one, other, alpha=factor), first.shape, both)
    indices, count = torch.cat([first._i, second._i], 1), one.shape[0]
    if both:
        indices, at = joined(indices, extents_of(first)[0])
    else:
        indices, at = _walked(indices, count)
    room = one.new_zeros((indices.shape[1], *one.shape[1:]))
    one, other = room.index_add(0, at[:count], one), room.index_add(0, at[count:], other)
    return make(indices, torch.add(one, other, alpha=factor), first.shape, both)


def _check(first: Any, second: Any, factor: Any) -> None:
    if first.shape != second.shape:
        raise RuntimeError(
            f"add: expected sizes of 'self' and 'other' to match, but {list(first.shape)} != "
            f"{list(second.shape)}"
        )
    inexact = (first.dtype, second.dtype, torch.result_type(factor, factor))
    if inexact[2].is_floating_point and not any(
        dtype.is_floating_point or dtype.is_complex for dtype in inexact[:2]
    ):
        raise RuntimeError(
            "For integral input tensors, argument alpha must not be a floating point number."
        )


def _scaled(values: torch.Tensor, factor: Any) -> torch.Tensor:
    return values if factor == 1 else values * factor


def _same_memory(one: Any, other: Any) -> bool:
    return one._b is other._b and one._o == other._o and one._g is other._g


def _one_behind_the_other(
    first: Any, second: Any, one: torch.Tensor, other: torch.Tensor
) -> SparseTensor:
    made = make(torch.cat([first._i, second._i], 1), torch.cat([one, other]), first.shape)
    if made._v.shape[0] <= first.numel():
        return made
    whole = coalesced(made)
    return make(whole._i, whole._v, whole.shape)


def _walked(indices: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The indices of the sum; and where each of the given ones is among them.

    The first `count` of the given indices are of one operand. Waits.
    """
    keys = list(zip(*indices.tolist(), strict=True)) or [()] * indices.shape[1]
    sources: list[int] = []
    at = [0] * len(keys)
    i, j, end = 0, count, len(keys)
    while i < count or j < end:
        takes_first = j == end or (i < count and keys[i] <= keys[j])
        takes_second = i == count or (j < end and keys[j] <= keys[i])
        if takes_first:
            at[i] = len(sources)
        if takes_second:
            at[j] = len(sources)
        sources.append(i if takes_first else j)
        i, j = i + takes_first, j + takes_second
    told = torch.tensor(sources + at, device=CUDA)
    return indices.index_select(1, told[: len(sources)]), told[len(sources) :]


def _onto(dense: Any, sparse: Any, factor: Any) -> Any:
    """Add the entries to a dense tensor, in place."""
    extents, rest = extents_of(sparse)
    if tuple(dense.shape) != tuple(sparse.shape):
        raise RuntimeError(
            f"add: expected 'self' and 'other' to have same size, but self has size "
            f"{list(dense.shape)} while other has size {list(sparse.shape)}"
        )
    places = places_of(sparse._i, extents)
    values = sparse._v.to(dense.dtype)
    if dense.is_contiguous():
        dense.view(math.prod(extents), *rest).index_add_(0, places, values, alpha=factor)
        return dense
    return dense.add_(to_dense(make(sparse._i, values, sparse.shape, sparse._c)), alpha=factor)


def mm(first: Any, second: Any, reduce: str = "sum") -> Any:
    """A sparse matrix times a dense matrix or vector."""
    if not is_ours(first) or is_ours(second) or reduce != "sum":
        raise refused("this product of sparse tensors", INSTEAD)
    if first._i.shape[0] != 2 or first._v.dim() != 1:
        raise refused("products of sparse tensors that are no matrices", INSTEAD)
    if first.shape[1] != second.shape[0]:
        raise RuntimeError(
            f"mm: Argument #3 (dense): Expected dim 0 size {first.shape[1]}, got {second.shape[0]}"
        )
    rows, columns = first._i
    weights = first._v if second.dim() == 1 else first._v[:, None]
    terms = weights * second.index_select(0, columns)
    room = terms.new_zeros((first.shape[0], *second.shape[1:]))
    return room.index_add(0, rows, terms)


def addmm(base: Any, first: Any, second: Any, *, beta: Any = 1, alpha: Any = 1) -> Any:
    product = mm(first, second)
    return beta * base + (product if alpha == 1 else alpha * product)


def masked(dense: Any, mask: Any) -> Any:
    """`dense.sparse_mask(mask)`"""
    extents, rest = extents_of(mask)
    whole = to_dense(dense) if is_ours(dense) else dense
    flat = whole.reshape(math.prod(extents), *rest)
    return make(mask._i, flat.index_select(0, places_of(mask._i, extents)), mask.shape, mask._c)


def total(tensor: Any, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Any:
    if dim is not None:
        return _sum_over(tensor, dim, keepdim, dtype)
    return tensor._v.sum() if dtype is None else tensor._v.sum(dtype=dtype)


def _sum_over(tensor: Any, dims: Any, keepdim: bool, dtype: Any) -> Any:
    """The sum over dimensions, which has an entry wherever one was."""
    dims = [dim % tensor.dim() for dim in ([dims] if isinstance(dims, int) else dims)]
    dims = dims or list(range(tensor.dim()))
    count, whole = tensor._i.shape[0], coalesced(tensor)
    values = whole._v if dtype is None else whole._v.to(dtype)
    inner = [dim - count + 1 for dim in dims if dim >= count]
    if inner:
        values = values.sum(inner, keepdim=keepdim)
    left = [dim for dim in range(count) if dim not in dims]
    shape = [1 if dim in dims else extent for dim, extent in enumerate(tensor.shape)]
    if not keepdim:
        shape = [extent for dim, extent in enumerate(tensor.shape) if dim not in dims]
    if not left and not keepdim:
        return values.sum(0)
    indices = whole._i
    if keepdim:
        indices = torch.stack([row * (dim in left) for dim, row in enumerate(indices)])
    elif len(left) < count:
        indices = indices[left]
    return coalesced(make(indices, values, shape, len(left) == count))


def total_backward(grad: Any, tensor: Any, dims: Any) -> Any:
    """The gradient of a sum over dimensions, at the entries."""
    whole, dense = coalesced(tensor), to_dense(grad)
    for dim in sorted(dim % tensor.dim() for dim in dims):
        dense = dense.unsqueeze(dim)
    made = masked(dense.expand(tensor.shape), whole)
    made._c = grad.is_coalesced() if is_ours(grad) else False
    return made
