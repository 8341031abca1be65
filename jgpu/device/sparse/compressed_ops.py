"""Ops on compressed sparse tensors: sums, functions of entries, parts, conversions.

Products are in `compressed_products`. Gradients are of the same pattern, but of `sum`, where they
are dense, as natively. Ops that are not in `_HANDLERS` are refused.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

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
    to_dense,
    to_host,
    transposed,
    values_of,
)
from jgpu.device.sparse.compressed_products import PRODUCTS
from jgpu.device.sparse.conversions import compressed, from_host, relaid
from jgpu.device.sparse.pattern import LAYOUTS
from jgpu.device.tensor import DeviceTensor
from jgpu.device.tracebacks import unseen

__all__ = ["install"]


def install() -> None:
    """Give compressed tensors their ops, and the other tensors the ways to them; once."""
    CompressedTensor.handlers = _HANDLERS
    CompressedTensor.derived = _DERIVED
    for name, layout in _CONVERSIONS.items():
        coo.SparseTensor.handlers[f"_{name}"] = _converting(layout)
        setattr(DeviceTensor, name, _compressing(layout))


# -- entry by entry ---------------------------------------------------------------------------


def _unary(name: str) -> Callable[..., Any]:
    """A function that leaves zeros alone, of the entries."""

    def apply(whole: Any, *args: Any, **keywords: Any) -> Any:
        return assembled(whole._p, getattr(torch, name)(values_of(whole), *args, **keywords))

    return apply


def _mul(first: Any, second: Any) -> Any:
    """By a number, or by a tensor at the entries' places."""
    whole, other = (first, second) if is_compressed(first) else (second, first)
    by_itself = not isinstance(other, torch.Tensor) or other.dim() == 0
    dense = isinstance(other, DeviceTensor) and whole.layout is torch.sparse_csr
    if (by_itself or dense) and whole.requires_grad and torch.is_grad_enabled():
        with torch._C.DisableTorchFunctionSubclass():
            return torch.mul(whole, other)
    if is_compressed(other) or coo.is_ours(other):
        other = to_dense(other)
    if isinstance(other, torch.Tensor) and other.dim():
        if whole.layout is not torch.sparse_csr:
            raise RuntimeError("Expected result Tensor to be of format CSR")
        if not isinstance(other, DeviceTensor):
            raise mixed_devices(other)
        other = values_of(masked(other.expand(whole.shape), whole._p))
    return assembled(whole._p, values_of(whole) * other)


class _Spread(torch.autograd.Function):
    """The dense tensor; its gradient stays dense, as that of a sum does."""

    @staticmethod
    def forward(ctx: Any, whole: Any) -> torch.Tensor:
        return to_dense(whole)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return grads[0]


def _add(first: Any, second: Any, *, alpha: Any = 1) -> Any:
    """Two of one layout give one of it; with a dense tensor the sum is dense."""
    if not (is_compressed(first) and is_compressed(second)):
        terms = []
        for each in (first, second):
            if not isinstance(each, DeviceTensor | CompressedTensor):
                raise refused("this sum with a compressed tensor", INSTEAD)
            terms.append(_Spread.apply(each) if is_compressed(each) else each)
        return torch.add(*terms, alpha=alpha)
    if first.layout is not second.layout or first.shape != second.shape:
        raise RuntimeError(
            f"add: {first.layout} of {list(first.shape)} and {second.layout} of "
            f"{list(second.shape)} cannot be added"
        )
    if (first.requires_grad or second.requires_grad) and torch.is_grad_enabled():
        with torch._C.DisableTorchFunctionSubclass():  # gradients may be dense
            return torch.add(first, second, alpha=alpha)
    one, other = first._p, second._p
    if one.compressed is other.compressed and one.plain is other.plain:
        return assembled(one, values_of(first) + values_of(second) * alpha)
    if one.blocked or one.batch:
        raise refused("sums of blocked or batched tensors of other patterns", INSTEAD)
    total = relaid(first) + relaid(second) * alpha
    return relaid(total, first.layout)


def _add_(first: Any, second: Any, *, alpha: Any = 1) -> Any:
    if isinstance(first, DeviceTensor):
        return first.add_(_Spread.apply(second), alpha=alpha)
    return _put(first, _add(first, second, alpha=alpha))


def _put(target: Any, made: Any) -> Any:
    """Make a tensor another one, in place."""
    if not is_compressed(target) or not is_compressed(made):
        raise RuntimeError("A sparse result does not fit into a dense tensor, nor the other way")
    if target.requires_grad and torch.is_grad_enabled():
        raise refused("changing a sparse tensor in place under autograd", "make a new one")
    if made.shape != target.shape or made.layout is not target.layout:
        raise RuntimeError(f"A result of shape {list(made.shape)} does not fit into the tensor")
    target._p = made._p
    if made._v.shape == target._v.shape:  # tensors that share the values see it
        target._v.copy_(made._v)
    else:
        target._v = made._v.to(target.dtype, copy=True)
    return target


def _sum(whole: Any, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Any:
    if whole.requires_grad and torch.is_grad_enabled() and (dim in (None, ()) or keepdim):
        with torch._C.DisableTorchFunctionSubclass():  # gradients are dense
            given = () if dim in (None, ()) else (dim, keepdim)
            return torch.sum(whole, *given, dtype=dtype)
    if dim is not None and dim != ():
        if whole.layout is not torch.sparse_csr:
            raise RuntimeError(
                "Currently the only compressed sparse format supported for sum.dim_IntList is CSR, "
                f"but got layout {title(whole)}"
            )
        if not keepdim:
            raise RuntimeError("reductions of compressed sparse tensors need keepdim=True")
        return compressed(to_dense(whole).sum(dim, keepdim=True, dtype=dtype), whole.layout)
    return whole._v.sum(dtype=dtype)


# -- parts and conversions --------------------------------------------------------------------


def _transpose(whole: Any, first: int = 0, second: int = 1) -> Any:
    count, at = whole.dim(), len(whole._p.batch)
    if {first % count, second % count} != {at, at + 1}:
        raise refused("turning other dimensions than rows and columns", INSTEAD)
    return transposed(whole)


def _indices(name: str) -> Callable[[Any], torch.Tensor]:
    """`crow_indices()` and its like, which not every layout has."""

    def part(whole: Any) -> torch.Tensor:
        names = LAYOUTS[whole.layout]
        if name not in names:
            kind = "row" if name in ("crow", "col") else "column"
            raise RuntimeError(
                f"{name}_indices expected sparse {kind} compressed tensor layout but got "
                f"{title(whole)}"
            )
        found: torch.Tensor = whole._p.compressed if name == names[0] else whole._p.plain
        return found

    return part


def _without(what: str) -> Callable[..., Any]:
    def none(whole: Any, *args: Any, **keywords: Any) -> Any:
        kind = str(whole.layout).rpartition("_")[2].upper()
        raise RuntimeError(f"Sparse {kind} tensors do not have {what}")

    return none


def _to_sparse(
    whole: Any, sparse_dim: Any = None, *, layout: Any = None, blocksize: Any = None,
    dense_dim: Any = None,
) -> Any:  # fmt: skip
    return relaid(whole, layout, blocksize, dense_dim)


#: the methods that convert into one layout
_CONVERSIONS = {
    "to_sparse_csr": torch.sparse_csr,
    "to_sparse_csc": torch.sparse_csc,
    "to_sparse_bsr": torch.sparse_bsr,
    "to_sparse_bsc": torch.sparse_bsc,
}


def _converting(layout: torch.layout) -> Callable[..., Any]:
    def convert(whole: Any, *args: Any, **keywords: Any) -> Any:
        return relaid(whole, layout, *_sizes(layout, args, keywords))

    return convert


def _compressing(layout: torch.layout) -> Callable[..., Any]:
    def convert(dense: Any, *args: Any, **keywords: Any) -> Any:
        return compressed(dense, layout, *_sizes(layout, args, keywords))

    return unseen(convert)


def _sizes(layout: torch.layout, args: Any, keywords: dict[str, Any]) -> tuple[Any, Any]:
    """blocksize and dense_dim, as the methods take them."""
    names = ("blocksize", "dense_dim") if "bs" in str(layout) else ("dense_dim",)
    given = dict(zip(names, args, strict=False)) | keywords
    return given.get("blocksize"), given.get("dense_dim")


def _empty(whole: Any, **keywords: Any) -> CompressedTensor:
    """`zeros_like`: without entries."""
    pattern, at = whole._p, len(whole._p.batch)
    nothing = replace(
        pattern, compressed=torch.zeros_like(pattern.compressed), plain=pattern.plain[..., :0]
    )
    return assembled(nothing, whole._v.narrow(at, 0, 0))


def _to_copy(whole: Any, *, dtype: Any = None, device: Any = None, **keywords: Any) -> Any:
    made = assembled(whole._p, whole._v.to(dtype or whole.dtype, copy=True))
    return to_host(made) if device and torch.device(device).type == "cpu" else made


def _copy_(target: Any, source: Any, non_blocking: bool = False) -> Any:
    return _put(target, source if isinstance(source, CompressedTensor) else from_host(source))


#: functions of torch's that leave zeros alone
_UNARY = (
    "abs", "asin", "asinh", "atan", "atanh", "ceil", "conj_physical", "deg2rad", "erf", "erfinv",
    "expm1", "floor", "frac", "isinf", "isnan", "isneginf", "isposinf", "log1p", "neg",
    "rad2deg", "relu", "round", "sgn", "sign", "signbit", "sin", "sinh", "sqrt", "square", "tan",
    "tanh", "trunc", "nan_to_num",
)  # fmt: skip

#: whose derivatives torch knows for any gradient, dense or not
_DERIVED = frozenset({"t", "transpose", "neg", "negative", "__neg__", "clone"})
#: by the name of a method, a function or an op
_HANDLERS: dict[str, Callable[..., Any]] = {
    **{f"{name}_indices": _indices(name) for name in ("crow", "col", "ccol", "row")},
    "values": values_of,
    "_values": values_of,
    "_nnz": lambda t: t._p.plain.shape[-1],
    "sparse_dim": lambda t: 2,
    "dense_dim": lambda t: len(t._p.dense),
    "stride": _without("strides"),
    "is_contiguous": _without("is_contiguous"),
    "to_dense": to_dense,
    "_to_dense": to_dense,
    "to_sparse": _to_sparse,
    "to_sparse_coo": lambda t: relaid(t),
    **{name: _converting(layout) for name, layout in _CONVERSIONS.items()},
    "detach": lambda t: assembled(t._p, t._v),
    "alias": lambda t: assembled(t._p, t._v),
    "clone": lambda t, **keywords: assembled(t._p, values_of(t).clone()),
    "zeros_like": _empty,
    "empty_like": lambda t, **keywords: assembled(t._p, torch.empty_like(t._v)),
    "ones_like": lambda t, *, dtype=None, **keywords: assembled(
        t._p, torch.ones_like(t._v, dtype=dtype)
    ),
    "full_like": lambda t, fill_value, *, dtype=None, **keywords: assembled(
        t._p, torch.full_like(t._v, fill_value, dtype=dtype)
    ),
    "new_empty_strided": lambda t, *sizes, **keywords: assembled(t._p, torch.zeros_like(t._v)),
    "_to_copy": _to_copy,
    "copy_": _copy_,
    "zero_": lambda t: _put(t, _empty(t)),
    "sparse_mask": masked,
    "add": _add,
    "add_": _add_,
    "__add__": _add,
    "__radd__": _add,
    "__iadd__": _add_,
    "mul": _mul,
    "__mul__": _mul,
    "__rmul__": _mul,
    **{name: lambda t, other: _put(t, _mul(t, other)) for name in ("mul_", "__imul__")},
    **{name: _unary(name) for name in _UNARY},
    **{name: _unary("neg") for name in ("__neg__", "negative")},
    **PRODUCTS,
    "t": transposed,
    "transpose": _transpose,
    "sum": _sum,
}
