"""Ops on sparse tensors in coordinate form, spelled out in dense ops on indices and values.

Ops that are not in `_HANDLERS` are refused.
"""

import sys
from collections.abc import Callable
from typing import Any, Final

import torch

from jgpu.device.errors import refused
from jgpu.device.sparse import conversions
from jgpu.device.sparse.base import INSTEAD
from jgpu.device.sparse.coo import (
    SparseTensor,
    coalesced,
    extents_of,
    from_host,
    is_ours,
    make,
    sparsified,
    to_dense,
    to_host,
)
from jgpu.device.sparse.coo_entries import ENTRYWISE
from jgpu.device.sparse.coo_sums import added, addmm, masked, mm, total, total_backward

__all__ = ["OF_DENSE", "install"]

_current_node = getattr(torch._C, "_current_autograd_node", lambda: None)
#: references to a gradient that only autograd holds, from C++ and from Python, during its copy
_USES: Final = 3
_REFERENCES: Final = 4


def install() -> None:
    """Give sparse tensors their ops; once."""
    SparseTensor.handlers = _HANDLERS
    SparseTensor.functions = {
        "new": _new,
        "storage": _without(NotImplementedError, "Cannot access storage of SparseTensorImpl"),
        "untyped_storage": _without(
            NotImplementedError, "Cannot access storage of SparseTensorImpl"
        ),
        "data_ptr": _without(
            RuntimeError, "Cannot access data pointer of Tensor that doesn't have storage"
        ),
        "numpy": _without(
            TypeError,
            "can't convert Sparse layout tensor to numpy. Use Tensor.to_dense() first.",
        ),
        "is_contiguous": lambda tensor, *args, **keywords: False,
    }


def _without(error: type[Exception], text: str) -> Callable[..., Any]:
    def refuse(*args: Any, **keywords: Any) -> Any:
        raise error(text)

    return refuse


def _transpose(tensor: Any, first: int = 0, second: int = 1) -> Any:
    count = tensor._i.shape[0]
    first, second = first % tensor.dim(), second % tensor.dim()
    if tensor.dim() < 2 or first == second:
        return tensor
    if max(first, second) >= count:
        raise refused("turning dense dimensions of a sparse tensor", INSTEAD)
    order, shape = list(range(count)), list(tensor.shape)
    for each in (order, shape):
        each[first], each[second] = each[second], each[first]
    return make(tensor._i[order], tensor._v.clone(memory_format=torch.contiguous_format), shape)


def _new(tensor: Any, *args: Any, **keywords: Any) -> Any:
    """`tensor.new(indices, values, size)`, as optimizers make their updates."""
    if not args:
        return make(tensor._i.new_zeros(1, 0), tensor._v.new_zeros(0), (0,), True)
    return make(*args)


def _resize_as_(tensor: Any, other: Any, **keywords: Any) -> Any:
    extents, dense = extents_of(other)
    return make(other._i.new_zeros(len(extents), 0), other._v.new_zeros(0, *dense), other.shape)


def _zero_(tensor: Any) -> Any:
    tensor._i, tensor._v, tensor._c = tensor._i[:, :0], tensor._v[:0], True
    return tensor


def _copy_(target: Any, source: Any, non_blocking: bool = False) -> Any:
    if not is_ours(target):
        raise refused("copying a sparse tensor into a dense one", INSTEAD)
    other = source if is_ours(source) else from_host(source)
    values = other._v.to(target.dtype, copy=True)
    target._i, target._v, target._c = other._i.clone(), values, other._c
    return target


def _to_copy(tensor: Any, *, dtype: Any = None, device: Any = None, **keywords: Any) -> Any:
    values = tensor._v.to(tensor.dtype if dtype is None else dtype, copy=True)
    made = make(tensor._i, values, tensor.shape, tensor._c)
    elsewhere = device is not None and torch.device(device).type == "cpu"
    return to_host(made) if elsewhere else made


def _clone(tensor: Any, **keywords: Any) -> Any:
    """A copy; of a gradient that only autograd holds, the same entries, as native torch does it.

    Native torch looks at its reference counts. A tensor with a Python object has other counts, so
    autograd always requests a copy.
    """
    if keywords.get("memory_format") not in (None, torch.contiguous_format):
        raise RuntimeError("unsupported memory format option Preserve")
    node = _current_node()
    if node is not None and node.name().endswith("AccumulateGrad"):
        alone = tensor._use_count() <= _USES and sys.getrefcount(tensor) <= _REFERENCES
        if alone and tensor._v.is_contiguous() and tensor._i.is_contiguous():
            return make(tensor._i, tensor._v, tensor.shape)
    return make(tensor._i.clone(), tensor._v.clone(), tensor.shape, tensor._c)


def _threshold_backward(grad: Any, tensor: Any, threshold: Any) -> Any:
    """The gradient of `relu`, at the entries."""
    whole, given = coalesced(tensor), coalesced(grad)
    values = given._v if given._i is whole._i else masked(given, whole)._v
    return make(whole._i, torch.where(whole._v > threshold, values, 0), tensor.shape)


def _empty(tensor: Any, **keywords: Any) -> Any:
    """`zeros_like`: without entries."""
    if keywords.get("memory_format") is not None:
        raise RuntimeError("memory format option is only supported by strided tensors")
    values = tensor._v if keywords.get("dtype") is None else tensor._v.to(keywords["dtype"])
    return make(tensor._i[:, :0], values[:0], tensor.shape, True)


def _projected(tensor: Any, mask: Any, accumulate_matches: bool = False) -> Any:
    """What `tensor` has at the entries of `mask`."""
    return masked(tensor, mask)


def _set_coalesced(tensor: Any, coalesced: bool) -> Any:
    tensor._c = coalesced
    return tensor


def _part(name: str) -> Callable[..., Any]:
    """`values()` or `indices()`, which only ordered entries have."""

    def part(tensor: Any) -> Any:
        if not tensor._c:
            raise RuntimeError(
                f"Cannot get {name} on an uncoalesced tensor, please call .coalesce() first"
            )
        return tensor._v.detach() if name == "values" else tensor._i.detach()

    return part


def _of_parts(
    sparse: int, dense: int, size: Any, indices: Any, values: Any, *, is_coalesced: Any = None,
    **keywords: Any,
) -> Any:  # fmt: skip
    """A tensor for torch's C++, as the backward of an embedding makes one."""
    return make(indices, values, size, is_coalesced)


def _to_sparse(tensor: Any, *args: Any, **keywords: Any) -> Any:
    return conversions.relaid(tensor, keywords.get("layout"), keywords.get("blocksize"))


#: by the name of an op
_HANDLERS: dict[str, Callable[..., Any]] = {
    "_sparse_coo_tensor_with_dims_and_tensors": _of_parts,
    "_indices": lambda t: t._i,
    "_values": lambda t: t._v.detach(),
    "indices": _part("indices"),
    "values": _part("values"),
    "_nnz": lambda t: t._v.shape[0],
    "sparse_dim": lambda t: t._i.shape[0],
    "_dimI": lambda t: t._i.shape[0],
    "dense_dim": lambda t: t._v.dim() - 1,
    "_dimV": lambda t: t._v.dim() - 1,
    "is_coalesced": lambda t: t._c,
    "_coalesced_": _set_coalesced,
    "_coalesce": coalesced,
    "_to_dense": to_dense,
    "_to_sparse": _to_sparse,
    "detach_": lambda t: t,
    "detach": lambda t: make(t._i, t._v, t.shape, t._c),
    "alias": lambda t: make(t._i, t._v, t.shape, t._c),
    "clone": _clone,
    "zeros_like": _empty,
    "empty_like": _empty,
    "_to_copy": _to_copy,
    "copy_": _copy_,
    "zero_": _zero_,
    "resize_as_": _resize_as_,
    "sparse_mask": masked,
    "_sparse_mask_projection": _projected,
    "add": added(),
    "add_": added(in_place=True),
    "sub": added(sign=-1),
    "sub_": added(sign=-1, in_place=True),
    **ENTRYWISE,
    "threshold_backward": _threshold_backward,
    "mm": mm,
    "mv": mm,
    "_sparse_mm": mm,
    "addmm": addmm,
    "_sparse_addmm": addmm,
    "t": _transpose,
    "transpose": _transpose,
    "sum": total,
    "_sparse_sum": total,
    "_sparse_sum_backward": total_backward,
}  # fmt: skip

#: ops that make sparse tensors of dense ones
OF_DENSE: dict[str, Callable[..., Any]] = {
    "aten::_sparse_coo_tensor_with_dims_and_tensors": _of_parts,
    "aten::_to_sparse": lambda dense, **keywords: sparsified(dense),
    "aten::_to_sparse.sparse_dim": sparsified,
    "aten::sparse_mask": masked,
}
