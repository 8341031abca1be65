"""Functions of the entries of a sparse tensor in coordinate form, and products at their places."""

import math
from collections.abc import Callable
from typing import Any, Final

import torch

from jgpu.device import current
from jgpu.device.errors import refused
from jgpu.device.sparse.base import INSTEAD
from jgpu.device.sparse.coo import (
    SparseTensor,
    coalesced,
    extents_of,
    is_ours,
    make,
    places_of,
    replaced,
    scalar_name,
    to_dense,
)
from jgpu.device.tensor import CUDA

__all__ = ["ENTRYWISE"]


def _with_values(tensor: Any, values: torch.Tensor) -> SparseTensor:
    return make(tensor._i, values, tensor.shape, tensor._c)


def _unary(name: str, *, linear: bool = False) -> Callable[..., Any]:
    """A function that leaves zeros alone, of the entries."""

    def apply(tensor: Any, *args: Any, **keywords: Any) -> Any:
        whole = tensor if linear else coalesced(tensor)
        return _with_values(whole, getattr(torch, name)(whole._v, *args, **keywords))

    return apply


def _unary_(name: str, *, linear: bool = False) -> Callable[..., Any]:
    """The same in place, in the values."""

    def apply(tensor: Any, *args: Any, **keywords: Any) -> Any:
        if not (linear or tensor._c):
            raise RuntimeError(f"{name}_ requires coalesced input")
        getattr(torch, f"{name}_")(tensor._v, *args, **keywords)
        return tensor

    return apply


def _scaled(name: str, *, in_place: bool = False) -> Callable[..., Any]:
    """Product or quotient with a number, or with a tensor at the entries' places."""

    def apply(tensor: Any, other: Any, **keywords: Any) -> Any:
        given = tensor
        if not is_ours(tensor):
            if in_place:
                raise refused(f"{name}_ of a dense tensor by a sparse one", INSTEAD)
            tensor, other = other, tensor
        if name == "div":
            if isinstance(other, torch.Tensor) and other.dim():
                raise RuntimeError(
                    "Sparse division requires a scalar or zero-dim dense tensor divisor "
                    f"(got shape {list(other.shape)} for divisor)"
                )
            if in_place and (tensor._c or not keywords):  # the only one that writes into the values
                tensor._v.div_(other, **keywords)
                return tensor
            tensor = tensor if keywords.get("rounding_mode") is None else coalesced(tensor)
        if is_ours(other):
            made = _product_of_two(tensor, other)
        else:
            if isinstance(other, torch.Tensor) and other.dim():
                other = _at_entries(tensor, other)
            made = _with_values(tensor, getattr(torch, name)(tensor._v, other, **keywords))
            made._c = made._c and not (in_place and name == "mul")  # as after the native kernel
        if not in_place:
            return made
        if made.dtype is not given.dtype and made.dtype.is_floating_point:
            raise RuntimeError(
                f"dtype of values ({scalar_name(made.dtype)}) must match dtype of sparse tensor "
                f"({scalar_name(given.dtype)})"
            )
        return replaced(given, made)

    return apply


def _at_entries(tensor: Any, dense: torch.Tensor) -> torch.Tensor:
    """Elements of a dense tensor at the entries of a sparse one."""
    extents, rest = extents_of(tensor)
    there = dense.expand(tensor.shape).reshape(math.prod(extents), *rest)
    return there.index_select(0, places_of(tensor._i, extents))


#: in which the host's kernel adds up the products of a place
_SUMS: Final = {torch.float32: torch.float64, torch.complex64: torch.complex128}


def _product_of_two(one: Any, other: Any) -> SparseTensor:
    """The product of two sparse tensors; sums of a place begin with a zero that is positive."""
    dtype = torch.result_type(one._v, other._v)
    on_host = not current.session.device_facts().has_cuda_kernels
    sums = _SUMS.get(dtype, dtype) if on_host else dtype
    tensor, other = _entries_first(one, other)
    values, others = (each._v.to(dtype).to(sums) for each in (tensor, other))
    if other._c or not on_host:
        there = to_dense(make(other._i, others, other.shape, other._c))
        products = values * _at_entries(tensor, there) + 0
    else:
        left, right = _pairs(tensor._i, other._i)
        terms = values.index_select(0, left) * others.index_select(0, right)
        products = torch.zeros_like(values).index_add(0, left, terms)
    return _with_values(tensor, products.to(dtype))


def _pairs(one: torch.Tensor, other: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Which entries of two lists have one place, in the order of both; waits."""
    count = one.shape[1]
    keys = list(zip(*torch.cat([one, other], 1).tolist(), strict=True))
    places: dict[Any, list[int]] = {}
    for at, key in enumerate(keys[count:]):
        places.setdefault(key, []).append(at)
    pairs = [(k, at) for k, key in enumerate(keys[:count]) for at in places.get(key, ())]
    told = torch.tensor(pairs, dtype=torch.int64, device=CUDA).reshape(-1, 2)
    return told[:, 0], told[:, 1]


def _entries_first(one: Any, other: Any) -> tuple[Any, Any]:
    """Of two factors, first the one whose entries the product has in native torch."""
    larger = one._v.shape[0] >= other._v.shape[0]
    turned = larger if one._c is other._c else one._c
    return (other, one) if turned else (one, other)


#: functions that leave zeros alone, for which native kernels put entries together first
_ZERO_TO_ZERO: Final = (
    "abs", "asin", "asinh", "atan", "atanh", "ceil", "deg2rad", "erf", "erfinv", "expm1", "floor",
    "frac", "log1p", "nan_to_num", "rad2deg", "relu", "round", "sgn", "sign", "sin", "sinh", "sqrt",
    "tan", "tanh", "trunc",
)  # fmt: skip
#: and for which they do not
_LINEAR: Final = ("neg", "conj_physical")

#: by the name of an op
ENTRYWISE: dict[str, Callable[..., Any]] = {
    "mul": _scaled("mul"),
    "mul_": _scaled("mul", in_place=True),
    "div": _scaled("div"),
    "div_": _scaled("div", in_place=True),
    **{name: _unary(name) for name in _ZERO_TO_ZERO},
    **{f"{name}_": _unary_(name) for name in _ZERO_TO_ZERO if hasattr(torch, f"{name}_")},
    **{name: _unary(name, linear=True) for name in _LINEAR},
    **{f"{name}_": _unary_(name, linear=True) for name in _LINEAR},
    **{name: _unary(name) for name in ("pow", "isnan", "isinf", "isposinf", "isneginf", "signbit")},
    "floor_divide": _unary("floor_divide"),
    "_conj_physical": _unary("conj_physical", linear=True),
}
