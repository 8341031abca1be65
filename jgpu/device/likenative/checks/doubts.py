"""Calls that the meta kernel accepts and the device's own kernel may refuse.

Native PyTorch checks shapes, types and numbers on the host before a kernel runs, on CUDA too. Some
meta kernels leave such checks out. A call that looks wrong is recorded and waited for, so that the
device's own kernel raises its own error on the line that called it. If the kernel accepts the call,
nothing but one wait was lost, and the plan is trusted from then on.

Does not cover values that only the device knows, and numbers that may be others at each call
(`ranges`).
"""

import warnings
from typing import Any, Final

import torch

from jgpu.device.geometry import InternedGeometry
from jgpu.device.likenative.trying import REFUSING, call
from jgpu.device.recording.ops import OpInfo
from jgpu.device.tensor import DeviceTensor, device_tensors

__all__ = ["about_call"]

#: Ops whose checks depend on which sizes are equal, and on dimensions and types: the host's kernel
#: is called with small tensors.
_BY_EQUAL_SIZES: Final = frozenset({
    "_safe_softmax", "_softmax", "_log_softmax", "amax", "amin", "aminmax", "any", "bucketize",
    "complex", "cummax", "cummin", "diagonal_scatter", "embedding_renorm", "gcd", "heaviside",
    "index_add", "index_copy", "index_put", "index_reduce", "lcm", "linalg_cross", "linalg_qr",
    "log_sigmoid_forward", "logcumsumexp", "masked_fill", "masked_scatter", "max", "median", "min",
    "mode", "nanmedian", "nansum", "native_group_norm", "native_layer_norm", "nll_loss2d_forward",
    "nll_loss_forward", "polar", "polygamma", "put", "round", "scatter", "scatter_add",
    "scatter_reduce", "searchsorted", "smooth_l1_loss", "sort", "trace", "_native_batch_norm_legit",
    "gather", "hardswish", "gelu", "celu", "elu", "hardtanh", "mvlgamma", "_linalg_det",
    "_cdist_forward", "_standard_gamma",
})  # fmt: skip
#: Ops whose checks compare sizes with numbers: the host's kernel is called with the true sizes.
_BY_TRUE_SIZES: Final = frozenset({
    "_adaptive_avg_pool2d", "_adaptive_avg_pool3d", "_fft_c2c", "_fft_c2r", "_fft_r2c",
    "adaptive_max_pool2d", "adaptive_max_pool3d", "arange", "as_strided_scatter", "bernoulli",
    "bernoulli_", "full", "grid_sampler_2d", "grid_sampler_3d", "histc", "im2col", "kthvalue",
    "linspace", "multinomial", "randint_like", "random", "randperm", "segment_reduce",
    "select_scatter", "slice_scatter", "topk", "upsample_bilinear2d", "upsample_trilinear3d",
})  # fmt: skip
#: Sizes up to this one stay as they are among those that are only compared.
_SMALL: Final = 4
#: what `multinomial` draws from at most
_MOST_CATEGORIES: Final = 1 << 24
#: elements up to which a call is made with true sizes
_QUICK: Final = 1 << 14


def about_call(
    info: OpInfo,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    geometries: tuple[InternedGeometry, ...],
) -> bool:
    """Whether the device's kernel may refuse a call of these geometries and constants."""
    base = info.func._schema.name[6:]
    if base == "convolution":
        return _is_odd_convolution(*args)
    base = base.removesuffix("_")
    if base in _BY_EQUAL_SIZES:
        sizes = sorted({size for each in geometries for size in each.shape if size > _SMALL})
        small = {size: _SMALL + 1 + rank for rank, size in enumerate(sizes)}
        return _is_refused(info, args, kwargs, small)
    if base == "multinomial" and args[0].dim() and args[0].shape[-1] > _MOST_CATEGORIES:
        return True
    if base in _BY_TRUE_SIZES and sum(each.numel for each in geometries) <= _QUICK:
        return _is_refused(info, args, kwargs, {})
    return False


def _is_refused(
    info: OpInfo, args: tuple[Any, ...], kwargs: dict[str, Any], small: dict[int, int]
) -> bool:
    """Whether the host's kernel refuses tensors of these sizes, of which `small` has smaller."""
    named = {name: value for name, value in kwargs.items() if name in info.out_names}
    written = [id(args[at]) for at in info.writes if at < len(args)]
    draws_from_host = info.seeded and "generator" not in info.positions
    written += [id(each) for each in device_tensors(tuple(named.values()))]

    def stand_in(tensor: DeviceTensor) -> torch.Tensor:
        geometry = tensor._g
        shape = [0 if draws_from_host else small.get(size, size) for size in geometry.shape]
        whole = not geometry.dtype.is_floating_point
        fill = torch.zeros if whole and not geometry.dtype.is_complex else torch.ones
        if id(tensor) in written or 0 in shape:
            return fill(shape, dtype=geometry.dtype, device="cpu")
        return fill((), dtype=geometry.dtype, device="cpu").expand(shape)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            call(info, args, kwargs, stand_in)
        except (*REFUSING, ArithmeticError):
            return True
    return False


def _is_odd_convolution(
    given: Any, weight: Any, bias: Any, stride: Any, padding: Any, dilation: Any,
    transposed: bool, output_padding: Any, groups: int,
) -> bool:  # fmt: skip
    """Whether a convolution's sizes or numbers are such as no kernel takes."""
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
