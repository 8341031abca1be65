"""Checks of elementwise in-place ops that torch's meta kernels lack.

A native kernel never changes the geometry of a tensor that it writes in place. It refuses operands
that would broadcast that tensor, result types that do not fit its type, and tensors whose elements
share memory. Several meta kernels resize the tensor instead, check in another order, or check
nothing.

`check` calls the host's kernel with small stand-ins, once per plan: sizes other than 0 and 1 become
small ones, and steps of 0 stay. If that call fails, a second one with the true sizes words the
error. `check_geometry` covers the other ops: it refuses a call that a meta kernel has resized.

Does not cover values, random ops, and tensors with a conjugate or negative bit.
"""

import sys
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, Final

import torch

from jgpu.device.geometry import InternedGeometry
from jgpu.device.likenative import words
from jgpu.device.likenative.trying import REFUSING, call_quietly
from jgpu.device.recording.ops import OpInfo
from jgpu.device.tensor import DeviceTensor, device_tensors

__all__ = ["check", "check_geometry"]

#: Elementwise in-place ops that torch does not tag as such, nor their out-of-place forms.
_UNTAGGED: Final = frozenset({
    "aten::__irshift__", "aten::abs_", "aten::copysign_", "aten::eq_", "aten::fill_",
    "aten::floor_divide_", "aten::gcd_", "aten::ge_", "aten::gelu_", "aten::gt_",
    "aten::hardswish_", "aten::heaviside_", "aten::hypot_", "aten::lcm_", "aten::le_",
    "aten::lt_", "aten::masked_fill_", "aten::mish_", "aten::ne_", "aten::nextafter_",
    "aten::threshold_", "aten::xlogy_", "aten::zero_",
})  # fmt: skip
#: Errors that depend on sizes and strides alone, not on types.
_OF_SHAPES: Final = ("output with shape ", "unsupported operation: ", "The size of tensor ")
#: Written elements up to which the host's kernel may compute.
_MOST_ELEMENTS: Final = 1 << 22
_MOST_SIZES_IN_LISTS: Final = 5


def check(info: OpInfo, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Raise the error that a native kernel raises for these sizes, strides and types.

    Return whether the types were checked.
    """
    if not _is_elementwise(info) or not words.has_host_kernel(info):
        return False
    given = list(device_tensors((args, *kwargs.values())))
    if any(tensor._g.bits for tensor in given):
        return False
    plain = all(words.is_plain(tensor.dtype) for tensor in given)
    try:
        call_quietly(info, args, kwargs, _Shrinking(info).stand_in, _one)
    except REFUSING as error:
        of_shapes = str(error).startswith(_OF_SHAPES)
        if not of_shapes and not plain:
            return False  # CUDA computes with more types than the host
        written = written_tensors(info, args, kwargs)
        large = sum(tensor._g.numel for tensor in written) > _MOST_ELEMENTS
        if large and (not of_shapes or _is_on_lists(info)):
            return False
        # a kernel raises errors of shapes before it touches memory
        stand_in = _of_true_size(written, torch.empty if large else torch.ones)
        call_quietly(info, args, kwargs, stand_in, _one)
    return plain


def check_geometry(
    info: OpInfo,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    resized: Sequence[tuple[InternedGeometry, InternedGeometry]],
) -> None:
    """Raise if a meta kernel has resized a tensor that the op writes in place.

    `resized` holds the geometry before and after for each tensor that changed.
    """
    if info.out_names or info.inplace_view or not resized:
        return
    words.raise_as_native(info, args, kwargs)
    before, after = resized[0]
    raise RuntimeError(
        f"output with shape {list(before.shape)} doesn't match the broadcast shape "
        f"{list(after.shape)}"
    )


def written_tensors(
    info: OpInfo, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> list[DeviceTensor]:
    """Return the tensors that the op writes, those inside lists included."""
    values = [args[at] for at in info.writes if at < len(args)]
    values += [kwargs[name] for name in info.out_names if name in kwargs]
    return list(device_tensors(values))


def _is_elementwise(info: OpInfo) -> bool:
    """Whether the op writes its first argument elementwise and nothing else."""
    if info.writes != (0,) or info.out_names or info.inplace_view or info.seeded:
        return False
    base = info.name.partition(".")[0]
    return _is_on_lists(info) or base in _UNTAGGED or _is_tagged(info.func)


def _is_on_lists(info: OpInfo) -> bool:
    name: str = info.name
    return name.startswith("aten::_foreach_")


@cache
def _is_tagged(func: Any) -> bool:
    """Whether torch tags the op or an out-of-place form of it as pointwise."""
    base = func._schema.name.removeprefix("aten::").rstrip("_")
    other = getattr(torch.ops.aten, base, None)
    forms = [func] if other is None else [func, *(getattr(other, n) for n in other.overloads())]
    tagged: bool = any(torch.Tag.pointwise in form.tags for form in forms)
    return tagged


def _one(value: Any) -> Any:
    return type(value)(1)


class _Shrinking:
    """Makes small stand-ins: equal sizes stay equal, different ones different.

    In lists of tensors a few different sizes become equal, so that none becomes large; for those
    the meta kernels have the native checks.
    """

    def __init__(self, info: OpInfo) -> None:
        self._sizes = {0: 0, 1: 1}
        self._most = _MOST_SIZES_IN_LISTS if _is_on_lists(info) else sys.maxsize

    def stand_in(self, tensor: DeviceTensor) -> torch.Tensor:
        """Return a tensor of ones on the host that repeats elements where `tensor` does."""
        return _repeated(tensor._g, [self._small(size) for size in tensor._g.shape], torch.ones)

    def _small(self, size: int) -> int:
        return self._sizes.setdefault(size, 2 + (len(self._sizes) - 2) % self._most)


def _of_true_size(
    written: list[DeviceTensor], fill: Callable[..., torch.Tensor]
) -> Callable[[DeviceTensor], torch.Tensor]:
    def stand_in(tensor: DeviceTensor) -> torch.Tensor:
        geometry = tensor._g
        if any(tensor is each for each in written):
            return _repeated(geometry, geometry.shape, fill)
        one = torch.ones((), dtype=_type_on_host(geometry.dtype), device="cpu")
        return one.expand(geometry.shape)

    return stand_in


def _repeated(
    geometry: InternedGeometry, sizes: Sequence[int], fill: Callable[..., torch.Tensor]
) -> torch.Tensor:
    """Fill a tensor of these sizes that has steps of 0 where the geometry has them."""
    steps = zip(sizes, geometry.stride, strict=True)
    stored = [1 if step == 0 and size else size for size, step in steps]
    return fill(stored, dtype=_type_on_host(geometry.dtype), device="cpu").expand(tuple(sizes))


def _type_on_host(dtype: torch.dtype) -> torch.dtype:
    """Return the type, or one of its kind that the host's kernels take."""
    if words.is_plain(dtype):
        return dtype
    if dtype.is_complex:
        return torch.complex64
    return torch.float32 if dtype.is_floating_point else torch.int64
