"""Calls that the meta kernel accepts and the device's own kernel may refuse.

Native PyTorch checks shapes, types and numbers on the host before a kernel runs, on CUDA too. Some
meta kernels leave such checks out. A call that looks wrong is recorded and waited for, so that the
device's own kernel raises its own error on the line that called it. If the kernel accepts the call,
nothing but one wait was lost, and the plan is trusted from then on.

Does not cover values that only the device knows, types that a kernel lacks (`dtypes`), and numbers
that may be others at each call (`ranges`).
"""

from collections.abc import Sequence
from typing import Any, Final

import torch

from jgpu.device.geometry import InternedGeometry
from jgpu.device.likenative.checks import asking
from jgpu.device.recording.ops import OpInfo

__all__ = ["about_call"]

#: Ops whose checks depend on which sizes are equal, and on dimensions and types: the host's kernel
#: is called with small tensors.
_BY_EQUAL_SIZES: Final = frozenset({
    "_safe_softmax", "_softmax", "_log_softmax", "amax", "amin", "aminmax", "any", "bucketize",
    "complex", "cummax", "cummin", "embedding_renorm", "gcd", "heaviside",
    "index_add", "index_copy", "index_put", "index_reduce", "lcm", "linalg_cross", "linalg_qr",
    "log_sigmoid_forward", "logcumsumexp", "masked_fill", "masked_scatter", "max", "median", "min",
    "mode", "nanmedian", "nansum", "native_layer_norm", "nll_loss2d_forward",
    "nll_loss_forward", "polar", "polygamma", "put", "round", "scatter", "scatter_add",
    "scatter_reduce", "searchsorted", "smooth_l1_loss", "sort", "trace", "_native_batch_norm_legit",
    "gather", "hardswish", "gelu", "celu", "elu", "hardtanh", "mvlgamma", "_linalg_det",
    "_cdist_forward", "_standard_gamma",
})  # fmt: skip
#: Ops whose checks compare sizes with numbers: the host's kernel is called with the true sizes.
_BY_TRUE_SIZES: Final = frozenset({
    "_adaptive_avg_pool2d", "_adaptive_avg_pool3d", "_fft_c2c", "_fft_c2r", "_fft_r2c",
    "adaptive_max_pool2d", "adaptive_max_pool3d", "arange", "as_strided_scatter", "bernoulli",
    "bernoulli_", "full", "grid_sampler_2d", "grid_sampler_3d", "im2col", "kthvalue",
    "linspace", "multinomial", "random", "randperm", "segment_reduce",
    "topk", "upsample_bilinear2d", "upsample_trilinear3d",
})  # fmt: skip
#: Ops that write into a view of a copy, with the op that makes the view.
_SCATTERED: Final = {
    f"{name}_scatter": getattr(torch.ops.aten, name) for name in ("diagonal", "select", "slice")
}
#: Ops that choose some elements of many.
_CHOOSING: Final = frozenset({"kthvalue", "multinomial", "topk"})
#: What `multinomial` draws from at most.
_MOST_CATEGORIES: Final = 1 << 24


def about_call(
    info: OpInfo,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    geometries: tuple[InternedGeometry, ...],
    params: Sequence[Any],
) -> bool:
    """Whether the device's kernel may refuse a call of these geometries, constants and numbers."""
    base = info.func._schema.name[6:].removesuffix("_")
    if base == "convolution":
        return _is_odd_convolution(*args)
    if base == "native_group_norm":
        return len({each.dtype for each in geometries}) > 1
    if base in _SCATTERED:
        return _is_odd_scatter(base, *args)
    if base == "randint_like":
        dtype = kwargs.get("dtype") or geometries[0].dtype
        return _has_odd_bounds(dtype, [each for each in args if type(each) is int])
    if base in _CHOOSING and _is_odd_choice(base, *args[:3]):
        return True
    if base in _BY_TRUE_SIZES:
        if asking.elements_of(geometries, {}) <= asking.QUICK:
            return _is_refused(info, args, kwargs, {})
        small = asking.smaller(geometries, asking.whole_numbers(info, args, kwargs))
    elif base in _BY_EQUAL_SIZES or _has_odd_number(kwargs, geometries, params):
        small = asking.smaller(geometries, ())
    else:
        return False
    if asking.elements_of(geometries, small) > asking.QUICK:
        return False
    return _is_refused(info, args, kwargs, small)


def _has_odd_number(
    kwargs: dict[str, Any], geometries: tuple[InternedGeometry, ...], params: Sequence[Any]
) -> bool:
    """Whether a number has another type than the first tensor's elements."""
    dtype = geometries[0].dtype if geometries else torch.complex128
    complex_for_real = complex in map(type, params) and not dtype.is_complex
    return complex_for_real or (type(kwargs.get("alpha")) is bool and dtype is not torch.bool)


def _is_refused(
    info: OpInfo, args: tuple[Any, ...], kwargs: dict[str, Any], small: dict[int, int]
) -> bool:
    error = asking.refusal(info, args, kwargs, small)
    return error is not None and str(error) != "ZeroDivisionError"  # caused by the zeros


def _is_odd_choice(base: str, given: Any, count: int, last: Any = None) -> bool:
    """Whether elements are chosen of which there are too few."""
    if base == "multinomial":
        shape = given.shape
        if not given.is_floating_point() or len(shape) not in (1, 2):
            return True
        if count < 1 or shape[-1] > _MOST_CATEGORIES:
            return True
        return not last and count > shape[-1]
    dim = -1 if last is None else last
    size = given.shape[dim] if given.dim() else 1
    return not (1 if base == "kthvalue" else 0) <= count <= size


def _has_odd_bounds(dtype: torch.dtype, bounds: list[int]) -> bool:
    """Whether a type does not hold the whole numbers from the first bound up to the last."""
    low, high = (0, *bounds)[-2:]
    if dtype.is_complex or low >= high:
        return True
    if dtype is torch.bool:
        return low < 0 or high > 2
    limits = torch.finfo(dtype) if dtype.is_floating_point else torch.iinfo(dtype)
    return low < limits.min or high - 1 > limits.max


def _is_odd_scatter(base: str, given: Any, source: Any, *args: Any) -> bool:
    """Whether a source does not have the shape of the view that it is written into."""
    whole = torch.empty_strided(given.shape, given.stride(), dtype=given.dtype, device="meta")
    return bool(_SCATTERED[base](whole, *args).shape != source.shape)


def _is_odd_convolution(
    given: Any, weight: Any, bias: Any, stride: Any, padding: Any, dilation: Any,
    transposed: bool, output_padding: Any, groups: int,
) -> bool:  # fmt: skip
    """Whether a convolution's type, sizes or numbers are such as no kernel takes."""
    if given.dtype is torch.bool:
        return True
    spatial = given.dim() - 2
    numbers = (stride, padding, dilation, output_padding)
    if spatial < 1 or weight.dim() != given.dim() or groups < 1:
        return True
    if any(len(each) not in (1, spatial) for each in numbers):
        return True
    if min(padding) < 0 or min(output_padding) < 0 or min(stride) < 1 or min(dilation) < 1:
        return True
    if 0 in weight.shape or 0 in given.shape:
        return True
    made = weight.shape[1] * groups if transposed else weight.shape[0]
    taken = weight.shape[0] if transposed else weight.shape[1] * groups
    if weight.shape[0] % groups or given.shape[1] != taken:
        return True
    if transposed and any(
        out >= max(step, apart)
        for out, step, apart in zip(output_padding, stride, dilation, strict=False)
    ):
        return True
    return bias is not None and tuple(bias.shape) != (made,)
