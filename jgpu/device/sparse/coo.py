"""Sparse tensors in coordinate form: a pair of device tensors, and dense ops over them.

`SparseTensor` holds indices and values. To torch's C++ it is one more strided tensor of the
backend; to Python it says that it is sparse. What is done to it is spelled out in dense ops on the
pair, so the executor knows no sparse tensors, autograd runs through the values, and sums happen in
the order in which native kernels sum. What is not spelled out is refused, with a sentence.

Ops on it are in `coo_ops`: what gradients of embeddings, `SparseAdam`, and products of graphs need.
Compressed layouts (CSR and its kin) are in `compressed`.
"""

import functools
import math
from collections.abc import Callable
from typing import Any, TypeGuard

import torch

from jgpu.device.sparse.base import CompositeTensor
from jgpu.device.tensor import CUDA, DeviceTensor, device
from jgpu.device.tracebacks import unseen

__all__ = [
    "SparseTensor",
    "coalesced",
    "created",
    "extents_of",
    "from_host",
    "is_ours",
    "make",
    "places_of",
    "sparsified",
    "to_dense",
    "to_host",
]


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
        return repr(to_host(self)).replace("size=", "device='cuda:0', size=", 1)

    def __reduce_ex__(self, protocol: Any) -> Any:
        """As a sparse tensor of the host; loading moves nothing."""
        return to_host(self).__reduce_ex__(protocol)


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


def to_host(tensor: Any) -> torch.Tensor:
    """The same on the host; waits."""
    made: torch.Tensor = torch.sparse_coo_tensor(
        tensor._i.cpu(), tensor._v.cpu(), tuple(tensor.shape), is_coalesced=tensor._c or None,
        check_invariants=False,
    )  # fmt: skip
    return made


def places_of(indices: torch.Tensor, extents: tuple[int, ...]) -> torch.Tensor:
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


def extents_of(tensor: Any) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Extents of the sparse and of the dense dimensions."""
    count = tensor._i.shape[0]
    return tuple(tensor.shape[:count]), tuple(tensor.shape[count:])


def coalesced(tensor: Any) -> Any:
    """Entries in order, none twice; native kernels add up in this order."""
    if tensor._c:
        return tensor
    extents, dense = extents_of(tensor)
    if tensor._v.shape[0] < 2:
        return make(tensor._i, tensor._v, tensor.shape, True)
    ordered, order = places_of(tensor._i, extents).sort(stable=True)
    places, at = torch.unique_consecutive(ordered, return_inverse=True)
    values = tensor._v.new_zeros((places.shape[0], *dense)).index_add(0, at, tensor._v[order])
    return make(_unflat(places, extents), values, tensor.shape, True)


def to_dense(tensor: torch.Tensor, dtype: Any = None, **keywords: Any) -> torch.Tensor:
    """The dense tensor, or itself; entries of one place add up."""
    if not is_ours(tensor):
        return tensor
    extents, dense = extents_of(tensor)
    room = tensor._v.new_zeros((math.prod(extents), *dense))
    made: torch.Tensor = room.index_add(0, places_of(tensor._i, extents), tensor._v).view(
        tensor.shape
    )
    return made if dtype is None else made.to(dtype)
