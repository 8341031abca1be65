"""Sparse tensors in coordinate form: a pair of device tensors, and dense ops over them.

`SparseTensor` holds indices and values. Its layout is that of native sparse tensors also for
torch's C++, so torch's own autograd treats it: leaves, gradients and formulas are native ones.
Autograd calls ops through `__torch_dispatch__`, where they are spelled out in dense ops on the
pair. The executor knows no sparse tensors, and sums happen in the order in which native kernels
sum. Other ops raise an error with an alternative.

Invariant: the values of a `SparseTensor` have no autograd history, and each op returns
a new tensor object: torch's autograd sets the history of what an op returns.

Ops on it are in `coo_ops`: what gradients of embeddings, `SparseAdam`, and products of graphs need.
Compressed layouts (CSR and its kin) are in `compressed`.
"""

import functools
import math
from collections.abc import Callable
from typing import Any, ClassVar, TypeGuard

import torch

from jgpu.device import current
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
    "replaced",
    "scalar_name",
    "sparsified",
    "to_dense",
    "to_host",
]


class SparseTensor(CompositeTensor):
    """Indices [sparse dimensions, entries] and values [entries, dense dimensions ...]."""

    #: handlers by the name of a method or function, above autograd
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
    made._i, made._v = indices, values.detach()
    made._c = bool(coalesced) or values.shape[0] < 2  # as after native constructors
    result: SparseTensor = made
    return result


def assembled(
    indices: torch.Tensor, values: torch.Tensor, size: Any, coalesced: bool | None = False
) -> Any:
    """A sparse tensor of this pair; the values receive its gradient."""
    if not (values.requires_grad and torch.is_grad_enabled()):
        return make(indices, values, size, coalesced)
    return torch.ops.aten._sparse_coo_tensor_with_dims_and_tensors(
        indices.shape[0], values.dim() - 1, list(size), indices, values,
        dtype=values.dtype, layout=torch.sparse_coo, device=values.device,
        is_coalesced=coalesced or None,
    )  # fmt: skip


def replaced(target: Any, made: SparseTensor) -> Any:
    """Give a tensor other entries, in place; tensors that shared its values keep theirs."""
    target._i, target._v, target._c = made._i, made._v.to(target.dtype), made._c
    return target


def scalar_name(dtype: torch.dtype) -> str:
    """The name of a dtype in torch's messages, such as "Float"."""
    return torch.empty(0, dtype=dtype, device="cpu").type()[len("torch.") : -len("Tensor")]


def is_ours(value: Any) -> TypeGuard[SparseTensor]:
    """Whether it is a sparse tensor on the device."""
    return isinstance(value, SparseTensor)


def created(original: Callable[..., Any]) -> Callable[..., Any]:
    """`torch.sparse_coo_tensor`, whose tensor may be ours.

    The original is called over stand-ins on the host. It infers the size, checks, warns and raises
    as in native PyTorch. It needs the indices themselves, which may take a wait, only to infer the
    size or where invariants are checked: then native PyTorch on CUDA waits, too.
    """

    @functools.wraps(original)
    def sparse_coo_tensor(*args: Any, **keywords: Any) -> Any:
        given = [*args, keywords.get("indices"), keywords.get("values")]
        device = keywords.get("device")
        theirs = torch.device(device or torch.get_default_device()).type == "cpu"
        if theirs and not any(isinstance(each, DeviceTensor) for each in given):
            return original(*args, **keywords)
        keywords.pop("device", None)
        if len(args) + ("indices" in keywords) + ("values" in keywords) < 2:  # of a size alone
            return from_host(original(*args, device="cpu", **keywords))
        return _of_indices_and_values(original, *args, **keywords)

    return unseen(sparse_coo_tensor)


def _of_indices_and_values(
    original: Callable[..., Any], indices: Any, values: Any, *size: Any, dtype: Any = None,
    **keywords: Any,
) -> Any:  # fmt: skip
    second = torch.as_tensor(values, device=CUDA)
    second = second if dtype is None else second.to(dtype)
    checked = keywords.get("check_invariants")
    if checked is None:
        checked = torch.sparse.check_sparse_tensor_invariants.is_enabled()
    first = torch.as_tensor(indices, dtype=torch.int64, device=CUDA)
    if not isinstance(indices, DeviceTensor):
        known = torch.as_tensor(indices, dtype=torch.int64, device="cpu")
    elif checked or not (size or "size" in keywords):
        known = first.cpu()
    else:
        known = torch.zeros((), dtype=torch.int64, device="cpu").expand(first.shape)
    stand_in = torch.zeros((), dtype=second.dtype, device="cpu").expand(second.shape)
    host = original(known, stand_in, *size, device="cpu", **keywords)
    if second.dim() == 0:
        second = second.reshape(1)
    made = assembled(first, second, host.shape, host.is_coalesced())
    return made.requires_grad_() if keywords.get("requires_grad") else made


def from_host(host: torch.Tensor, dtype: torch.dtype | None = None) -> SparseTensor:
    """A sparse tensor of the host, in coordinate form, copied to the device."""
    values = host._values().to(CUDA)
    if dtype is not None:
        values = values.to(dtype)
    return make(host._indices().to(CUDA), values, host.shape, host.is_coalesced())


def sparsified(dense: torch.Tensor, dimensions: int | None = None) -> SparseTensor:
    """`to_sparse`: the elements that are not 0; waits once."""
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
    """One number per entry: its place among all elements."""
    place = torch.zeros_like(indices[0]) if len(indices) else indices.new_zeros(indices.shape[1])
    for row, extent in zip(indices, extents, strict=True):
        place = place * extent + row
    return place


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
    indices, at, order = _groups(tensor._i, extents)
    values = tensor._v.new_zeros((indices.shape[1], *dense)).index_add(0, at, tensor._v[order])
    return make(indices, values, tensor.shape, True)


def joined(indices: torch.Tensor, extents: tuple[int, ...]) -> tuple[torch.Tensor, torch.Tensor]:
    """The indices in order, none twice; and where each of the given ones is among them."""
    unique, at, order = _groups(indices, extents)
    return unique, torch.empty_like(at).index_copy(0, order, at)


def _groups(
    indices: torch.Tensor, extents: tuple[int, ...]
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Unique indices in order; the number of the group of each sorted entry; the sorting order.

    Indices are copied, not computed from places, so that one out of bounds stays what it is. The
    host's native kernel sorts without keeping equal places in order, CUDA's keeps it: sums of
    entries have the bits of that order.
    """
    keeps_order = current.session.device_facts().has_cuda_kernels
    ordered, order = places_of(indices, extents).sort(stable=keeps_order)
    _, at, counts = torch.unique_consecutive(ordered, return_inverse=True, return_counts=True)
    firsts = order[counts.cumsum(0) - counts]
    return indices.index_select(1, firsts), at, order


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
