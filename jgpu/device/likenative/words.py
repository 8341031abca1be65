"""Errors of the host's kernels for wrong shapes and types, raised on the notebook's line.

Meta kernels infer results, but some are written in Python and word errors differently, and many do
not check types, so the device's error would come later, once the op is sent. The host's kernel is
called with cheap stand-ins instead.

Does not cover values (exponents of integers: `powers`), nor types that only CUDA refuses: their
errors come from the device.
"""

import warnings
from typing import Any, Final

import torch

from jgpu.device.geometry import InternedGeometry, extent, intern
from jgpu.device.likenative import warned
from jgpu.device.likenative.trying import REFUSING, call, call_quietly, laid_out
from jgpu.device.recording.ops import OpInfo
from jgpu.device.tensor import DeviceTensor, device_tensors

__all__ = [
    "REFUSING",
    "check_outs",
    "check_types",
    "has_host_kernel",
    "idle_as_native",
    "is_computed_on_host",
    "is_elementwise",
    "is_plain",
    "on_host",
    "raise_as_native",
    "warnings_of",
]

#: whether the host has a kernel of the op; products that widen exist on CUDA only
_asked: Any = torch._C._dispatch_has_computed_kernel_for_dispatch_key
#: Elements up to which an op that failed is tried once more in its own shapes.
_QUICK: Final = 1 << 22
#: Elements up to which an op is tried with an `out` that has to be resized or converted.
_BRIEF: Final = 1 << 12
#: elements up to which the host's kernel is called for its warnings
_FEW: Final = 1 << 14
#: Ops whose meta kernels accept types that all devices refuse. A call with tensors of one element
#: each is valid for all values of their other arguments; so are elementwise ops.
_TYPED: Final = frozenset({
    "aten::_log_softmax", "aten::_softmax", "aten::addbmm", "aten::addmm", "aten::addmv",
    "aten::addr", "aten::baddbmm", "aten::binary_cross_entropy", "aten::bmm", "aten::dot",
    "aten::mm", "aten::mv", "aten::nll_loss2d_forward", "aten::nll_loss_forward", "aten::vdot",
})  # fmt: skip
#: The same, where even types that are equal may be wrong.
_INDEXED: Final = frozenset(
    f"aten::{name}{mark}"
    for name in (
        "argmax", "argmin", "embedding", "index", "index_add", "index_copy", "index_fill",
        "index_put", "index_reduce", "index_select", "masked_scatter", "masked_select", "put",
        "searchsorted", "std", "std_mean", "var", "var_mean",
    )
    for mark in ("", "_")
)  # fmt: skip
#: Of whole numbers alone, on all devices; the halves' types are refused, too.
_WHOLE: Final = frozenset(
    f"aten::bitwise_{name}{mark}"
    for name in ("and", "left_shift", "not", "or", "right_shift", "xor")
    for mark in ("", "_")
)
_HALVES: Final = frozenset({torch.float16, torch.bfloat16})
#: Ops that draw a number for each element, for types that their meta kernels do not look at.
_DRAWN: Final = frozenset({
    "aten::bernoulli", "aten::bernoulli_", "aten::normal", "aten::poisson", "aten::rand_like",
    "aten::random_", "aten::uniform_",
})  # fmt: skip
#: Elementwise ops without torch's tag.
_ELEMENTWISE: Final = ("aten::_foreach_", "aten::rsub")
#: Further ops whose results have the strides of their arguments, also in dimensions of one
#: element, where their meta kernels use row-major strides.
_LAID_ALIKE: Final = frozenset(
    f"aten::{name}"
    for name in (
        "_log_softmax", "_softmax", "empty_like", "flip", "full_like", "index_put", "ones_like",
        "renorm", "sort", "tril", "triu", "zeros_like",
    )
)  # fmt: skip
#: Ops whose kernels trust their arguments and may read past them: they are not called.
_TRUSTING: Final = frozenset(
    f"aten::{name}"
    for name in (
        "_embedding_bag", "_embedding_bag_forward_only", "_native_batch_norm_legit",
        "_native_batch_norm_legit_no_training", "native_batch_norm",
    )
)  # fmt: skip
#: Types that elementwise kernels of the host and of CUDA take alike; of others CUDA takes more.
_PLAIN: Final = frozenset({
    torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64,
    torch.float32, torch.float64, torch.complex64, torch.complex128,
})  # fmt: skip


def has_host_kernel(info: OpInfo) -> bool:
    """Whether the host has a kernel of the op."""
    return bool(_asked(info.name, "CPU"))


def is_plain(dtype: torch.dtype) -> bool:
    """Whether elementwise kernels of the host and of CUDA take this type alike."""
    return dtype in _PLAIN


def is_computed_on_host(dtype: torch.dtype) -> bool:
    """Whether most kernels of the host take this type."""
    return dtype in _PLAIN or dtype in _HALVES


def check_types(
    info: OpInfo,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    geometries: tuple[InternedGeometry, ...],
) -> None:
    """Raise at once where types do not fit together."""
    base = info.name.partition(".")[0]
    dtypes = {geometry.dtype for geometry in geometries}
    elementwise = is_elementwise(info) and not _counts(info)
    nothing = any(geometry.numel == 0 for geometry in geometries)
    if info.seeded:
        if base not in _DRAWN and any(geometry.numel for geometry in geometries):
            return
    elif not (elementwise or base in _TYPED or base in _INDEXED):
        return
    plain = _PLAIN | _HALVES if base in _WHOLE else _PLAIN
    if not _asked(info.name, "CPU") or ((elementwise or info.seeded) and not dtypes <= plain):
        return
    one_float = len(dtypes) == 1 and next(iter(dtypes)).is_floating_point
    looked_at = base in _INDEXED or base in _WHOLE or _has_odd_number(info, args, kwargs)
    if one_float and not looked_at:
        return
    if nothing and any(geometry.numel > _QUICK for geometry in geometries):
        return
    fill = torch.ones if elementwise else torch.zeros
    draws_from_host = info.seeded and "generator" not in info.positions

    def small(tensor: DeviceTensor) -> torch.Tensor:
        if nothing:
            shape: tuple[int, ...] = tensor.shape
        else:  # many kernels check no types of empty tensors; random ops do
            shape = (0,) if draws_from_host else (1,) * tensor.dim()
        return fill(shape, dtype=tensor.dtype, device="cpu")

    as_they_are = nothing or info.seeded  # bounds have to be in order
    try:
        call_quietly(info, args, kwargs, small, *(() if as_they_are else (lambda n: type(n)(1),)))
    except REFUSING as error:
        refusal = error.with_traceback(None)
    else:
        return
    try:
        with warned.collected():
            raise_as_native(info, args, kwargs)  # of true sizes it may refuse something else first
        raise refusal
    finally:
        del refusal  # it keeps this frame, and the call's tensors


def raise_as_native(info: OpInfo, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Raise the error of the host's kernel for tensors of these sizes, where that is quick.

    Returns whether the kernel was called and raised nothing.
    """
    try:
        return on_host(info, args, kwargs) is not NotImplemented
    except RuntimeError as error:
        if str(error) != "ZeroDivisionError":  # caused by the zeros
            raise
        return True


def on_host(info: OpInfo, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return the result of the host's kernel for such tensors; NotImplemented without a call."""
    given = device_tensors((args, *kwargs.values()))
    trusting = info.name.partition(".")[0] in _TRUSTING
    if trusting or not _asked(info.name, "CPU") or any(each.numel() > _QUICK for each in given):
        return NotImplemented

    def of_its_size(tensor: DeviceTensor) -> torch.Tensor:
        if not tensor.numel():
            return laid_out(tensor._g)
        # some kernels ignore strides and read as many elements as the shape has
        return torch.zeros(tensor.shape, dtype=tensor.dtype, device="cpu")

    return call(info, args, kwargs, of_its_size)


def check_outs(
    info: OpInfo, args: tuple[Any, ...], kwargs: dict[str, Any], inputs: dict[str, Any]
) -> dict[int, torch.Tensor]:
    """Raise the error of the host's kernel for an `out`, where it computes without one.

    `inputs` are the keywords without `out`. Kernels differ in their checks of types and overlaps.
    Returns host tensors with the geometry of the written ones, by the ids of the device's tensors;
    none where the kernel was not called.
    """
    given = list(device_tensors((args, *kwargs.values())))
    brief = sum(extent(each._g.shape, each._g.stride) for each in given) <= _BRIEF
    if not brief or not {each.dtype for each in given} <= _PLAIN | _HALVES or info.seeded:
        return {}
    made = {id(each): laid_out(each._g) for each in given}

    def twin(tensor: DeviceTensor) -> torch.Tensor:
        return made[id(tensor)]

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            call(info, args, kwargs, twin)
        except REFUSING:
            try:
                call(info, args, inputs, twin, func=info.functional)
            except REFUSING:
                return {}
            raise
    return made


def warnings_of(
    info: OpInfo,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    geometries: tuple[InternedGeometry, ...],
) -> warned.Said:
    """Return the warnings of the host's kernel for such tensors, where that is quick."""
    if any(geometry.numel > _FEW for geometry in geometries):
        return ()

    def on_host(sized: bool) -> None:
        def ones(tensor: DeviceTensor) -> torch.Tensor:
            shape = tensor.shape if sized else (1,) * tensor.dim()
            return torch.ones(shape, dtype=tensor.dtype, device="cpu")

        call(info, args, kwargs, ones)

    dtypes = {geometry.dtype for geometry in geometries}
    return warned.of_kernels(info.name, dtypes, on_host)


def idle_as_native(
    info: OpInfo,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    outs: list[InternedGeometry | int | None],
) -> list[InternedGeometry | int | None]:
    """Return geometries with the host's strides in dimensions of one element.

    No element depends on them, but an empty slice of such a dimension has its offset from them.
    """
    alike = info.name.partition(".")[0] in _LAID_ALIKE or is_elementwise(info)
    given = list(device_tensors((args, *kwargs.values())))
    brief = sum(each._g.numel or 1 for each in given) <= _FEW
    if not (alike and brief) or info.seeded or any(each._g.bits for each in given):
        return outs
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            made = call(info, args, kwargs, lambda tensor: laid_out(tensor._g))
        except REFUSING:
            return outs
    flat = made if isinstance(made, list | tuple) else [made]
    if len(flat) != len(outs):
        return outs
    return [_with_idle(out, native) for out, native in zip(outs, flat, strict=True)]


def _with_idle(out: InternedGeometry | int | None, native: Any) -> InternedGeometry | int | None:
    if not isinstance(out, InternedGeometry) or not isinstance(native, torch.Tensor):
        return out
    if native.shape != out.shape:
        return out
    steps = zip(out.shape, out.stride, native.stride(), strict=True)
    stride = tuple(theirs if size == 1 else mine for size, mine, theirs in steps)
    return intern(out.dtype, out.shape, stride, out.bits)


def _counts(info: OpInfo) -> bool:
    """Whether an argument may be a count, such as an order."""
    return any(str(argument.type) == "int" for argument in info.arguments)


def is_elementwise(info: OpInfo) -> bool:
    """Whether the op computes each element by itself."""
    base = info.name.partition(".")[0]
    return torch.Tag.pointwise in info.func.tags or base.startswith(_ELEMENTWISE)


def _has_odd_number(info: OpInfo, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether a number is given as True or False, or is complex."""
    kinds = {argument.name: argument.type for argument in info.arguments}
    named = dict(zip(kinds, args, strict=False)) | kwargs
    return any(
        type(value) is complex or (type(value) is bool and str(kinds[name]) == "number")
        for name, value in named.items()
    )
