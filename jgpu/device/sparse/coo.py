"""Sparse tensors in coordinate form: a pair of device tensors, and dense ops over them.

`SparseTensor` holds indices and values. To torch's C++ it is one more strided tensor of the
backend; to Python it says that it is sparse. What is done to it is spelled out in dense ops on the
pair, so the executor knows no sparse tensors, autograd runs through the values, and sums happen in
the order in which native kernels sum. What is not spelled out is refused, with a sentence.

Covers what gradients of embeddings, `SparseAdam`, and products of graphs need. Compressed layouts
(CSR and its kin) are in `compressed`.
"""

import functools
import math
from collections.abc import Callable
from typing import Any, TypeGuard

import torch

from jgpu.device.errors import refused
from jgpu.device.sparse.base import INSTEAD, CompositeTensor
from jgpu.device.tensor import CUDA, DeviceTensor, device
from jgpu.device.tracebacks import unseen

__all__ = ["OF_DENSE", "SparseTensor", "created", "from_host", "is_ours", "make", "sparsified"]


_TensorBase: Any = torch._C.TensorBase


class SparseTensor(CompositeTensor):
    """Indices [sparse dimensions, entries] and values [entries, dense dimensions ...]."""

    _i: torch.Tensor
    _v: torch.Tensor
    _c: bool

    is_sparse = True
    layout = torch.sparse_coo
    #: gradients run through the values
    requires_grad = property(
        lambda self: _TensorBase.requires_grad.__get__(self) or self._v.requires_grad,
        lambda self, wanted: self.requires_grad_(wanted),
    )

    def __repr__(self, *, tensor_contents: Any = None) -> str:
        """As torch prints it."""
        return repr(_cpu(self)).replace("size=", "device='cuda:0', size=", 1)

    def __reduce_ex__(self, protocol: Any) -> Any:
        """As a sparse tensor of the host; loading moves nothing."""
        return _cpu(self).__reduce_ex__(protocol)


def make(
    indices: torch.Tensor, values: torch.Tensor, size: Any, coalesced: bool | None = False
) -> SparseTensor:
    """A sparse tensor of this pair."""
    shape = tuple(int(extent) for extent in size)
    if indices.dim() != 2 or indices.shape[0] + values.dim() - 1 != len(shape):
        raise RuntimeError(
            "number of dimensions must be sparse_dim "
            f"({indices.shape[0]}) + dense_dim ({values.dim() - 1}), but got {len(shape)}"
        )
    made = torch.Tensor._make_wrapper_subclass(
        SparseTensor, shape, dtype=values.dtype, device=device(), requires_grad=False
    )
    made._i, made._v, made._c = indices, values, bool(coalesced)
    result: SparseTensor = made
    return result


def is_ours(value: Any) -> TypeGuard[SparseTensor]:
    """Whether it is a sparse tensor on the device."""
    return isinstance(value, SparseTensor)


def created(original: Callable[..., Any]) -> Callable[..., Any]:
    """`torch.sparse_coo_tensor`, whose tensor may be ours."""

    @functools.wraps(original)
    def sparse_coo_tensor(
        indices: Any, values: Any, size: Any = None, *, dtype: Any = None, device: Any = None,
        **keywords: Any,
    ) -> Any:  # fmt: skip
        theirs = isinstance(indices, DeviceTensor) or isinstance(values, DeviceTensor)
        if not theirs and (device is None or torch.device(device).type == "cpu"):
            return original(indices, values, size, dtype=dtype, device=device, **keywords)
        first = torch.as_tensor(indices, dtype=torch.int64, device=CUDA)
        second = torch.as_tensor(values, device=CUDA)
        if dtype is not None:
            second = second.to(dtype)
        if size is None:
            extents = (first.max(1).values + 1).tolist() if first.shape[1] else [0] * len(first)
            size = (*extents, *second.shape[1:])
        elif first.numel() and keywords.get("check_invariants", True):
            _check(first, size)
        made = make(first, second, size, keywords.get("is_coalesced"))
        return made.requires_grad_() if keywords.get("requires_grad") else made

    return unseen(sparse_coo_tensor)


def _check(indices: torch.Tensor, size: Any) -> None:
    """As torch says it, at the price of one wait."""
    for k, (low, high) in enumerate(torch.stack([indices.amin(1), indices.amax(1)], 1).tolist()):
        if low < 0:
            raise RuntimeError(f"found negative index {low} for dim {k}")
        if high >= size[k]:
            raise RuntimeError(
                f"size is inconsistent with indices: for dim {k}, size is {size[k]} but found "
                f"index {high}"
            )


def from_host(host: torch.Tensor, dtype: torch.dtype | None = None) -> SparseTensor:
    """A sparse tensor of the host, in coordinate form, copied to the device."""
    values = host._values().to(CUDA)
    if dtype is not None:
        values = values.to(dtype)
    return make(host._indices().to(CUDA), values, host.shape, host.is_coalesced())


def sparsified(dense: torch.Tensor, dimensions: int | None = None) -> SparseTensor:
    """`to_sparse`: what is not zero, by one wait."""
    count = dense.dim() if dimensions is None else int(dimensions)
    kept = dense if count == dense.dim() else dense.flatten(count).ne(0).any(-1)
    if dense.dim() == 0:
        found = dense.reshape(1).nonzero()[:, :0].t()
        return make(found, dense.reshape(1)[: found.shape[1]], (), True)
    places = kept.nonzero().t().contiguous()
    return make(places, dense[tuple(places)], dense.shape, True)


def _cpu(tensor: Any) -> torch.Tensor:
    made: torch.Tensor = torch.sparse_coo_tensor(
        tensor._i.cpu(), tensor._v.cpu(), tuple(tensor.shape), is_coalesced=tensor._c or None,
        check_invariants=False,
    )  # fmt: skip
    return made


def _flat(indices: torch.Tensor, extents: tuple[int, ...]) -> torch.Tensor:
    """One number per entry: where it stands among all."""
    place = torch.zeros_like(indices[0]) if len(indices) else indices.new_zeros(indices.shape[1])
    for row, extent in zip(indices, extents, strict=True):
        place = place * extent + row
    return place


def _unflat(places: torch.Tensor, extents: tuple[int, ...]) -> torch.Tensor:
    rows = []
    for extent in reversed(extents):
        rows.append(places % extent)
        places = places.div(extent, rounding_mode="floor")
    return torch.stack(rows[::-1]) if rows else places.new_zeros(0, places.shape[0])


def _split(tensor: Any) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Extents of the sparse and of the dense dimensions."""
    count = tensor._i.shape[0]
    return tuple(tensor.shape[:count]), tuple(tensor.shape[count:])


def _coalesce(tensor: Any) -> Any:
    """Entries in order, none twice; native kernels add up in this order."""
    if tensor._c:
        return tensor
    extents, dense = _split(tensor)
    if tensor._v.shape[0] < 2:
        return make(tensor._i, tensor._v, tensor.shape, True)
    ordered, order = _flat(tensor._i, extents).sort(stable=True)
    places, at = torch.unique_consecutive(ordered, return_inverse=True)
    values = tensor._v.new_zeros((places.shape[0], *dense)).index_add(0, at, tensor._v[order])
    return make(_unflat(places, extents), values, tensor.shape, True)


def _to_dense(tensor: torch.Tensor, dtype: Any = None, **keywords: Any) -> torch.Tensor:
    if not is_ours(tensor):
        return tensor
    extents, dense = _split(tensor)
    room = tensor._v.new_zeros((math.prod(extents), *dense))
    made: torch.Tensor = room.index_add(0, _flat(tensor._i, extents), tensor._v).view(tensor.shape)
    return made if dtype is None else made.to(dtype)


def _with_values(tensor: Any, values: torch.Tensor) -> SparseTensor:
    return make(tensor._i, values, tensor.shape, tensor._c)


def _unary(name: str) -> Callable[..., Any]:
    """A function that leaves zeros alone, of the entries."""

    def apply(tensor: Any, *args: Any, **keywords: Any) -> Any:
        whole = _coalesce(tensor)
        return _with_values(whole, getattr(torch, name)(whole._v, *args, **keywords))

    return apply


def _scaled(name: str, *, in_place: bool = False) -> Callable[..., Any]:
    """Product or quotient with a number, or with a tensor at the entries' places."""

    def apply(tensor: Any, other: Any, **keywords: Any) -> Any:
        if not is_ours(tensor) and name == "mul":
            tensor, other = other, tensor
        if is_ours(other):
            if name != "mul":
                raise refused(f"{name} by a sparse tensor", INSTEAD)
            tensor, other = _coalesce(tensor), _to_dense(other)
        if isinstance(other, torch.Tensor) and other.dim():
            extents, dense = _split(tensor)
            there = other.expand(tensor.shape).reshape(math.prod(extents), *dense)
            other = there.index_select(0, _flat(tensor._i, extents))
        values = getattr(torch, name)(tensor._v, other, **keywords)
        if not in_place:
            return _with_values(tensor, values)
        tensor._v = values.to(tensor.dtype)
        return tensor

    return apply


def _added(*, sign: int = 1, in_place: bool = False) -> Callable[..., Any]:
    """Sums: sparse and sparse give sparse, dense and sparse give dense."""

    def apply(first: Any, second: Any, *, alpha: Any = 1) -> Any:
        factor = sign * alpha
        if is_ours(first) and is_ours(second):
            other = second._v if factor == 1 else second._v * factor
            values = torch.cat([first._v, other.to(first.dtype)])
            indices = torch.cat([first._i, second._i], 1)
            made = _coalesce(make(indices, values, first.shape))
            if not in_place:
                return made
            first._i, first._v, first._c = made._i, made._v, True
            return first
        if not is_ours(second):  # sparse + dense
            dense = second * factor if factor != 1 else second
            if in_place:
                raise RuntimeError(
                    "add: expected 'self' to be a dense tensor, but got a sparse one"
                )
            return _onto(dense.clone(), first, 1)
        if isinstance(first, torch.Tensor) and not isinstance(first, DeviceTensor):
            raise refused("sums of a host's tensor and a sparse one of the device", INSTEAD)
        return _onto(first if in_place else first.clone(), second, factor)

    return apply


def _onto(dense: Any, sparse: Any, factor: Any) -> Any:
    """Add the entries to a dense tensor, in place."""
    extents, rest = _split(sparse)
    if tuple(dense.shape) != tuple(sparse.shape):
        raise RuntimeError(
            f"add: expected 'self' and 'other' to have same size, but self has size "
            f"{list(dense.shape)} while other has size {list(sparse.shape)}"
        )
    places = _flat(sparse._i, extents)
    values = sparse._v.to(dense.dtype)
    if dense.is_contiguous():
        dense.view(math.prod(extents), *rest).index_add_(0, places, values, alpha=factor)
        return dense
    return dense.add_(_to_dense(_with_values(sparse, values)), alpha=factor)


def _mm(first: Any, second: Any, reduce: str = "sum") -> Any:
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


def _addmm(base: Any, first: Any, second: Any, *, beta: Any = 1, alpha: Any = 1) -> Any:
    product = _mm(first, second)
    return beta * base + (product if alpha == 1 else alpha * product)


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
    return make(tensor._i[order], tensor._v, shape)


def _masked(dense: Any, mask: Any) -> Any:
    """`dense.sparse_mask(mask)`"""
    extents, rest = _split(mask)
    whole = _to_dense(dense) if is_ours(dense) else dense
    flat = whole.reshape(math.prod(extents), *rest)
    return _with_values(mask, flat.index_select(0, _flat(mask._i, extents)))


def _sum(tensor: Any, dim: Any = None, keepdim: bool = False, dtype: Any = None) -> Any:
    if dim is not None:
        return sparsified(_to_dense(tensor).sum(dim, keepdim, dtype=dtype))
    return tensor._v.sum() if dtype is None else tensor._v.sum(dtype=dtype)


def _new(tensor: Any, *args: Any, **keywords: Any) -> Any:
    """`tensor.new(indices, values, size)`, as optimizers make their updates."""
    if not args:
        return make(tensor._i.new_zeros(1, 0), tensor._v.new_zeros(0), (0,), True)
    return make(*args)


def _resize_as_(tensor: Any, other: Any, **keywords: Any) -> Any:
    extents, dense = _split(other)
    return make(other._i.new_zeros(len(extents), 0), other._v.new_zeros(0, *dense), other.shape)


def _zero_(tensor: Any) -> Any:
    tensor._i, tensor._v, tensor._c = tensor._i[:, :0], tensor._v[:0], True
    return tensor


def _copy_(target: Any, source: Any, non_blocking: bool = False) -> Any:
    if not is_ours(target):
        raise refused("copying a sparse tensor into a dense one", INSTEAD)
    other = source if is_ours(source) else from_host(source)
    target._i, target._v, target._c = other._i, other._v.to(target.dtype), other._c
    return target


def _to_copy(tensor: Any, *, dtype: Any = None, device: Any = None, **keywords: Any) -> Any:
    values = tensor._v if dtype is None else tensor._v.to(dtype)
    made = make(tensor._i, values, tensor.shape, tensor._c)
    elsewhere = device is not None and torch.device(device).type == "cpu"
    return _cpu(made) if elsewhere else made


def _part(name: str) -> Callable[..., Any]:
    """`values()` or `indices()`, which only ordered entries have."""

    def part(tensor: Any) -> Any:
        if not tensor._c:
            raise RuntimeError(
                f"Cannot get {name} on an uncoalesced tensor, please call .coalesce() first"
            )
        return tensor._v if name == "values" else tensor._i

    return part


def _of_parts(
    sparse: int, dense: int, size: Any, indices: Any, values: Any, *, is_coalesced: Any = None,
    **keywords: Any,
) -> Any:  # fmt: skip
    """What torch's C++ asks for, as the backward of an embedding does."""
    return make(indices, values, size, is_coalesced)


#: by the name of a method, a function or an op
_HANDLERS: dict[str, Callable[..., Any]] = {
    "_sparse_coo_tensor_with_dims_and_tensors": _of_parts,
    "_indices": lambda t: t._i,
    "_values": lambda t: t._v,
    "indices": _part("indices"),
    "values": _part("values"),
    "_nnz": lambda t: t._v.shape[0],
    "sparse_dim": lambda t: t._i.shape[0],
    "_dimI": lambda t: t._i.shape[0],
    "dense_dim": lambda t: t._v.dim() - 1,
    "_dimV": lambda t: t._v.dim() - 1,
    "is_coalesced": lambda t: t._c,
    "coalesce": _coalesce,
    "_coalesce": _coalesce,
    "to_dense": _to_dense,
    "_to_dense": _to_dense,
    "to_sparse": lambda t, *args, **keywords: t,
    "to_sparse_coo": lambda t: t,
    "detach_": lambda t: t,
    "detach": lambda t: make(t._i, t._v.detach(), t.shape, t._c),
    "alias": lambda t: make(t._i, t._v, t.shape, t._c),
    "clone": lambda t, **keywords: make(t._i.clone(), t._v.clone(), t.shape, t._c),
    "_to_copy": _to_copy,
    "cpu": lambda t, **keywords: _cpu(t),
    "copy_": _copy_,
    "zero_": _zero_,
    "new": _new,
    "resize_as_": _resize_as_,
    "sparse_mask": _masked,
    "add": _added(),
    "add_": _added(in_place=True),
    "__add__": _added(),
    "__radd__": _added(),
    "sub": _added(sign=-1),
    "sub_": _added(sign=-1, in_place=True),
    "__sub__": _added(sign=-1),
    "mul": _scaled("mul"),
    "__mul__": _scaled("mul"),
    "__rmul__": _scaled("mul"),
    "mul_": _scaled("mul", in_place=True),
    "div": _scaled("div"),
    "__truediv__": _scaled("div"),
    "div_": _scaled("div", in_place=True),
    **{name: _unary(name) for name in (
        "neg", "abs", "sqrt", "pow", "square", "sign", "sin", "tan", "tanh", "relu", "expm1",
        "log1p", "floor", "ceil", "trunc", "round", "isnan", "nan_to_num",
    )},
    "__neg__": _unary("neg"),
    "__pow__": _unary("pow"),
    "mm": _mm,
    "mv": _mm,
    "matmul": _mm,
    "_sparse_mm": _mm,
    "spmm": _mm,
    "__matmul__": _mm,
    "addmm": _addmm,
    "_sparse_addmm": _addmm,
    "t": _transpose,
    "transpose": _transpose,
    "sum": _sum,
    "_sparse_sum": _sum,
}  # fmt: skip

SparseTensor.handlers = _HANDLERS

#: ops that make sparse tensors of dense ones
OF_DENSE: dict[str, Callable[..., Any]] = {
    "aten::_sparse_coo_tensor_with_dims_and_tensors": _of_parts,
    "aten::_to_sparse": sparsified,
    "aten::_to_sparse.sparse_dim": sparsified,
    "aten::sparse_mask": _masked,
}
