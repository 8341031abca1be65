"""Sparse tensors in coordinate form: a pair of device tensors, and dense ops over them.

`SparseTensor` holds indices and values. Its layout is that of native sparse tensors also for
torch's C++, so torch's own autograd treats it: leaves, gradients and formulas are native ones.
Autograd calls ops through `__torch_dispatch__`, where they are spelled out in dense ops on the
pair. The executor knows no sparse tensors, and sums happen in the order in which native kernels
sum. What is not spelled out is refused, with a sentence.

Invariant: the values of a `SparseTensor` have no autograd history of their own, and each op returns
a new tensor object: torch's autograd sets the history of what an op returns.

Ops on it are in `coo_ops`: what gradients of embeddings, `SparseAdam`, and products of graphs need.
Compressed layouts (CSR and its kin) are in `compressed`.
"""

import functools
import math
from collections.abc import Callable
from typing import Any, ClassVar, TypeGuard

import torch

from jgpu.device.sparse.base import CompositeTensor, one_by_one
from jgpu.device.tensor import CUDA, DeviceTensor, device
from jgpu.device.tracebacks import unseen

__all__ = [
    "SparseTensor",
    "assembled",
    "coalesced",
    "created",
    "extents_of",
    "from_host",
    "is_ours",
    "joined",
    "make",
    "places_of",
    "sparsified",
    "to_dense",
    "to_host",
]


class SparseTensor(CompositeTensor):
    """Indices [sparse dimensions, entries] and values [entries, dense dimensions ...]."""

    #: what is called by the name of a method or function, above autograd
    functions: ClassVar[dict[str, Callable[..., Any]]] = {}
    _i: torch.Tensor
    _v: torch.Tensor
    _c: bool

    @classmethod
    @unseen
    def __torch_function__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Call what native tensors do in C++ without a dispatch by name; else torch's C++."""
        name = getattr(func, "__name__", "")
        handler = cls.functions.get(name)
        if handler is not None:
            return handler(*args, **(kwargs or {}))
        if name.startswith("_foreach_"):
            return one_by_one(name.removeprefix("_foreach_"), *args, **(kwargs or {}))
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **(kwargs or {}))

    @classmethod
    def __torch_dispatch__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Run an op below autograd."""
        with torch.no_grad():
            if func._schema.name.removeprefix("aten::") not in cls.handlers:
                made = func.decompose(*args, **(kwargs or {}))
                if made is not NotImplemented:
                    return made
            return super().__torch_dispatch__(func, types, args, kwargs)

    def __repr__(self, *, tensor_contents: Any = None) -> str:
        """As torch prints it."""
        text = repr(to_host(self)).replace("size=", "device='cuda:0', size=", 1)
        if self.grad_fn is not None:
            text = f"{text[:-1]}, grad_fn=<{type(self.grad_fn).__name__}>)"
        elif self.requires_grad:
            text = f"{text[:-1]}, requires_grad=True)"
        return f"Parameter containing:\n{text}" if getattr(self, "_is_param", False) else text

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        """Copy a leaf with its gradient, a parameter without, as torch does it."""
        if not getattr(self, "_is_param", False):
            return torch.Tensor.__deepcopy__(self, memo)
        return torch.nn.Parameter.__deepcopy__(self, memo)  # type: ignore[arg-type]

    def __reduce_ex__(self, protocol: Any) -> Any:
        """As a sparse tensor of the host; loading moves nothing."""
        return to_host(self).__reduce_ex__(protocol)


def make(
    indices: torch.Tensor, values: torch.Tensor, size: Any, coalesced: bool | None = False
) -> SparseTensor:
    """A sparse tensor of this pair, without a history of autograd's."""
    shape = tuple(int(extent) for extent in size)
    if indices.dim() != 2 or indices.shape[0] + values.dim() - 1 != len(shape):
        raise RuntimeError(
            "number of dimensions must be sparse_dim "
            f"({indices.shape[0]}) + dense_dim ({values.dim() - 1}), but got {len(shape)}"
        )
    made = torch.Tensor._make_wrapper_subclass(
        SparseTensor, shape, dtype=values.dtype, layout=torch.sparse_coo, device=device(),
        requires_grad=False,
    )  # fmt: skip
    made._i, made._v, made._c = indices, values.detach(), bool(coalesced)
    result: SparseTensor = made
    return result


def assembled(
    indices: torch.Tensor, values: torch.Tensor, size: Any, coalesced: bool | None = False
) -> Any:
    """A sparse tensor of this pair; its gradient goes on to the values."""
    if not (values.requires_grad and torch.is_grad_enabled()):
        return make(indices, values, size, coalesced)
    return torch.ops.aten._sparse_coo_tensor_with_dims_and_tensors(
        indices.shape[0], values.dim() - 1, list(size), indices, values,
        dtype=values.dtype, layout=torch.sparse_coo, device=values.device,
        is_coalesced=coalesced or None,
    )  # fmt: skip


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
        made = assembled(first, second, size, keywords.get("is_coalesced"))
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
    """The same on the host, without a history of autograd's; waits."""
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


def joined(
    indices: torch.Tensor, extents: tuple[int, ...]
) -> tuple[torch.Tensor, torch.Tensor]:
    """The indices in order, none twice; and where each of the given ones is among them."""
    ordered, order = places_of(indices, extents).sort(stable=True)
    places, at = torch.unique_consecutive(ordered, return_inverse=True)
    return _unflat(places, extents), torch.empty_like(at).index_copy(0, order, at)


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
