"""`torch.autocast("cuda")` on the shared device: CUDA's cast lists, applied at the backend's key.

The dispatcher knows which ops are cast (those with an AutocastCUDA kernel, also in a wheel without
CUDA); the tables below have how each is cast, after `ATen/autocast_mode.h`. The state
that libraries read is the backend's, which is "cuda" to them.

Invariant: an op that is not in the tables is not cast, and one that is runs its inner ops without
casts, as in C++.
"""

import functools
import weakref
from collections.abc import Callable
from typing import Any, Final

import torch

from jgpu.device.composed import innercasts
from jgpu.device.likenative import warned
from jgpu.device.recording.casts import Casting, Uncast
from jgpu.device.tensor import DeviceTensor, device
from jgpu.device.tracebacks import unseen

__all__ = [
    "APPEND_DTYPE",
    "BANNED",
    "FP32",
    "LOWER",
    "NAMED",
    "PROMOTE",
    "SET_DTYPE",
    "install",
    "register",
]

#: run in the dtype of autocast
LOWER: Final = frozenset({
    "_convolution.deprecated", "_convolution", "conv1d", "conv2d", "conv3d", "conv_tbc",
    "conv_transpose1d", "conv_transpose2d.input", "conv_transpose3d.input", "convolution",
    "prelu", "addmm", "addmv", "addr", "matmul", "einsum", "mm", "mv", "linalg_vecdot", "linear",
    "addbmm", "baddbmm", "bmm", "chain_matmul", "linalg_multi_dot", "_thnn_fused_lstm_cell",
    "_thnn_fused_gru_cell", "lstm_cell", "gru_cell", "rnn_tanh_cell", "rnn_relu_cell",
    "_scaled_dot_product_flash_attention", "scaled_dot_product_attention", "cudnn_convolution",
    "cudnn_convolution_transpose",
})  # fmt: skip

#: CUDA casts these inside, where it calls cuDNN: to float16, for each dtype of autocast
_HALF_ABOVE: Final = frozenset({
    "lstm.input", "lstm.data", "gru.input", "gru.data", "rnn_tanh.input", "rnn_tanh.data",
    "rnn_relu.input", "rnn_relu.data",
})  # fmt: skip

#: run in float32
FP32: Final = frozenset({
    "acos", "asin", "cosh", "erfinv", "exp", "expm1", "log", "log10", "log2", "log1p",
    "reciprocal", "rsqrt", "sinh", "tan", "pow.Tensor_Scalar", "pow.Tensor_Tensor", "pow.Scalar",
    "softplus", "layer_norm", "native_layer_norm", "rms_norm", "group_norm",
    "frobenius_norm.dim", "nuclear_norm", "nuclear_norm.dim", "cosine_similarity",
    "poisson_nll_loss", "cosine_embedding_loss", "nll_loss", "nll_loss2d",
    "hinge_embedding_loss", "kl_div", "l1_loss", "smooth_l1_loss", "huber_loss", "mse_loss",
    "margin_ranking_loss", "multilabel_margin_loss", "soft_margin_loss", "triplet_margin_loss",
    "multi_margin_loss", "binary_cross_entropy_with_logits", "dist", "pdist", "cdist", "renorm",
    "logsumexp", "upsample_nearest1d", "_upsample_nearest_exact1d", "upsample_nearest2d",
    "_upsample_nearest_exact2d", "upsample_nearest3d", "_upsample_nearest_exact3d",
    "upsample_linear1d", "upsample_bilinear2d", "_upsample_bilinear2d_aa",
    "upsample_trilinear3d", "upsample_bicubic2d", "_upsample_bicubic2d_aa",
})  # fmt: skip

#: the same, and in no list of torch's header
FP32_BESIDE: Final = frozenset({"linalg_matrix_sqrth"})

#: accumulate in float32 unless the caller names a dtype
SET_DTYPE: Final = frozenset({
    "prod", "prod.dim_int", "softmax.int", "log_softmax.int", "cumprod", "cumsum",
    "linalg_vector_norm", "linalg_matrix_norm", "linalg_matrix_norm.str_ord", "sum",
    "sum.dim_IntList",
})  # fmt: skip

#: have another overload that takes a dtype
APPEND_DTYPE: Final = {
    "norm.Scalar": "ScalarOpt_dtype",
    "norm.ScalarOpt_dim": "ScalarOpt_dim_dtype",
}

#: run in the widest dtype among their tensors
PROMOTE: Final = frozenset({
    "addcdiv", "addcmul", "atan2", "bilinear", "cross", "dot", "vdot", "grid_sampler",
    "index_put", "tensordot", "scatter_add",
})  # fmt: skip

#: refused, as on CUDA
BANNED: Final = frozenset({"binary_cross_entropy"})

#: all of them
NAMED: Final = (
    LOWER | _HALF_ABOVE | FP32 | FP32_BESIDE | SET_DTYPE | set(APPEND_DTYPE) | PROMOTE | BANNED
)

_Kernel = Callable[..., Any]
_library: Any = None
_float32, _float64 = torch.float32, torch.float64
#: casts of weights by the id of the weight, until the outermost autocast region ends
_cache: dict[int, tuple[weakref.ref[torch.Tensor], torch.Tensor]] = {}


def install() -> None:
    """Have the kernels registered when autocast is first enabled; the old names mean "cuda"."""
    set_enabled, set_dtype = torch.set_autocast_enabled, torch.set_autocast_dtype
    is_enabled, clear = torch.is_autocast_enabled, torch.clear_autocast_cache

    @functools.wraps(set_enabled)
    def set_autocast_enabled(*args: Any) -> None:
        device_type, enabled = args if len(args) == 2 else ("cuda", *args)
        if device_type == "cuda" and enabled:
            register()
        set_enabled(device_type, enabled)

    @functools.wraps(is_enabled)
    def is_autocast_enabled(device_type: str = "cuda") -> bool:
        return is_enabled(device_type)

    @functools.wraps(clear)
    def clear_autocast_cache() -> None:
        clear()
        _cache.clear()

    target: Any = torch
    target.set_autocast_enabled = unseen(set_autocast_enabled)
    target.is_autocast_enabled = unseen(is_autocast_enabled)
    for name, mean in (
        ("set_autocast_gpu_dtype", set_dtype),
        ("get_autocast_gpu_dtype", torch.get_autocast_dtype),
    ):
        setattr(target, name, unseen(_deprecated(getattr(torch, name), mean)))
    target.clear_autocast_cache = unseen(clear_autocast_cache)
    set_dtype("cuda", torch.float16)


def _deprecated(original: Any, mean: Any) -> Any:
    """An old name, which warns as natively and means "cuda"."""

    @functools.wraps(original)
    def call(*args: Any) -> Any:
        warned.as_caller(original, args, {})
        return mean("cuda", *args)

    return call


def register() -> None:
    """Put the casting kernels into the dispatcher; at first use, for it takes milliseconds."""
    global _library
    if _library is not None:
        return
    _library = torch.library.Library("aten", "IMPL")
    Casting.is_known = True
    known = torch._C._dispatch_get_registrations_for_dispatch_key("AutocastCUDA")
    for full in (*known, *(f"aten::{name}" for name in _HALF_ABOVE)):
        namespace, _, name = full.partition("::")
        make = _maker(name) if namespace == "aten" else None
        if make is not None:
            _library.impl(name, unseen(make(_overload(name))), "AutocastPrivateUse1")
    innercasts.register()


def _overload(name: str, overload: str | None = None) -> Any:
    base, _, own = name.partition(".")
    return getattr(getattr(torch.ops.aten, base), overload or own or "default")


def _maker(name: str) -> Callable[[Any], _Kernel] | None:
    for names, make in (
        (LOWER, _lower),
        (_HALF_ABOVE, _half),
        (FP32 | FP32_BESIDE, _fp32),
        (SET_DTYPE, _set_dtype),
        (PROMOTE, _promote),
        (BANNED, _banned),
    ):
        if name in names:
            return make
    if name in APPEND_DTYPE:
        other = _overload(name, APPEND_DTYPE[name])
        return lambda op: _append_dtype(op, other)
    return None


# -- kernels ---------------------------------------------------------------------------------


def _lower(op: Any) -> _Kernel:
    def kernel(*args: Any, **kwargs: Any) -> Any:
        with Uncast():
            to = torch.get_autocast_dtype("cuda")
            return op(*_cast_all(args, to), **_cast_named(kwargs, to))

    return kernel


def _half(op: Any) -> _Kernel:
    """Weights are copied into a buffer of float16 by each call; their casts are not cached."""

    def kernel(*args: Any, **kwargs: Any) -> Any:
        with Uncast():
            return op(*map(_halved, args), **{name: _halved(kwargs[name]) for name in kwargs})

    return kernel


def _fp32(op: Any) -> _Kernel:
    def kernel(*args: Any, **kwargs: Any) -> Any:
        with Uncast():
            return op(*_cast_all(args, _float32), **_cast_named(kwargs, _float32))

    return kernel


def _set_dtype(op: Any) -> _Kernel:
    arguments = op._schema.arguments
    place = next(i for i, argument in enumerate(arguments) if argument.name == "dtype")
    positional = not arguments[place].kwarg_only

    def kernel(*args: Any, **kwargs: Any) -> Any:
        with Uncast():
            given = args[place] if positional and len(args) > place else kwargs.get("dtype")
            if given is None and _eligible(args[0]):
                kwargs["dtype"] = _float32
                if positional:
                    args = args[:place]
            return op(*args, **kwargs)

    return kernel


def _append_dtype(op: Any, other: Any) -> _Kernel:
    def kernel(*args: Any, **kwargs: Any) -> Any:
        with Uncast():
            if not _eligible(args[0]):
                return op(*args, **kwargs)
            if len(args) == 1 and "p" not in kwargs:
                args = (*args, 2)
            if "dim" in other.name() and len(args) == 3 and "keepdim" not in kwargs:
                args = (*args, False)
            return other(*args, **kwargs, dtype=_float32)

    return kernel


def _promote(op: Any) -> _Kernel:
    """Optional tensors are cast, but do not count in the choice of the dtype, as in C++."""
    arguments = op._schema.arguments
    counted = [not isinstance(argument.type, torch.OptionalType) for argument in arguments]
    named = {argument.name: counts for argument, counts in zip(arguments, counted, strict=True)}

    def kernel(*args: Any, **kwargs: Any) -> Any:
        with Uncast():
            to = torch.get_autocast_dtype("cuda")
            for value, counts in zip(args, counted, strict=False):
                to = _wider(to, value) if counts else to
            for name, value in kwargs.items():
                to = _wider(to, value) if named[name] else to
            return op(*_cast_all(args, to), **_cast_named(kwargs, to))

    return kernel


def _banned(op: Any) -> _Kernel:
    def kernel(*args: Any, **kwargs: Any) -> Any:
        raise RuntimeError(
            "torch.nn.functional.binary_cross_entropy and torch.nn.BCELoss are unsafe to "
            "autocast.\nMany models use a sigmoid layer right before the binary cross entropy "
            "layer.\nIn this case, combine the two layers using "
            "torch.nn.functional.binary_cross_entropy_with_logits\nor "
            "torch.nn.BCEWithLogitsLoss.  binary_cross_entropy_with_logits and BCEWithLogits "
            "are\nsafe to autocast."
        )

    return kernel


# -- casts -----------------------------------------------------------------------------------


def _eligible(value: Any) -> bool:
    """A tensor on the device of a floating dtype other than float64.

    A transform of `torch.func` wraps device tensors in plain ones, which have the device.
    """
    if type(value) is not DeviceTensor and not (
        isinstance(value, torch.Tensor) and value.device == device()
    ):
        return False
    dtype = value.dtype
    return bool(dtype.is_floating_point and dtype is not _float64)


def _cast_all(values: Any, to: torch.dtype) -> list[Any]:
    return [_cast(value, to) for value in values]


def _cast_named(values: dict[str, Any], to: torch.dtype) -> dict[str, Any]:
    return {name: _cast(value, to) for name, value in values.items()}


def _halved(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [_halved(item) for item in value]
    return value.to(torch.float16) if _eligible(value) else value


def _cast(value: Any, to: torch.dtype) -> Any:
    if isinstance(value, list | tuple):
        return [_cast(item, to) for item in value]
    if not _eligible(value) or value.dtype is to:
        return value
    if (
        value.dtype is _float32
        and value.requires_grad
        and to is torch.get_autocast_dtype("cuda")
        and value.is_leaf
        and not value._is_view()
        and torch.is_autocast_cache_enabled()
        and not torch.is_inference_mode_enabled()
    ):
        return _cast_weight(value)
    return value.to(to)


def _cast_weight(weight: torch.Tensor) -> torch.Tensor:
    """Return the cast of a weight, made once between entering and leaving autocast.

    The rules are those of C++ (`cached_cast`) in torch 2.11 and later. All grad modes share one
    cache, so a cast is made with gradients enabled. Inference mode neither reads nor fills it. An
    entry is valid until the outermost region ends, even if the weight's values or the dtype of a
    nested region change.
    """
    found = _cache.get(id(weight))
    if found is not None and found[0]() is weight:
        return found[1]
    with torch.enable_grad():
        made = weight.to(torch.get_autocast_dtype("cuda"))
    _cache[id(weight)] = (weakref.ref(weight), made)
    return made


def _wider(to: torch.dtype, value: Any) -> torch.dtype:
    if isinstance(value, list | tuple):
        for item in value:
            to = _wider(to, item)
        return to
    if not _eligible(value) or to is value.dtype:
        return to
    if _float32 in (to, value.dtype):
        return _float32
    raise RuntimeError("Unexpected floating ScalarType in at::autocast::prioritize")
