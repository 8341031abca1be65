"""CUDA's branch of torch's composites, on host tensors: of those that need their arguments alone.

Written from torch's sources, as `branches`, which has the others and puts these in their places.
"""

import math
from collections.abc import Callable
from typing import Any, Final

import torch
from torch import Tensor
from torch.nn.functional import linear, pad

from jgpu.broker.executor.devices.onhost.kernels import KERNELS

__all__ = ["COMPOSITES", "whole"]

_aten: Any = torch.ops.aten
_MATH, _FLASH, _EFFICIENT, _CUDNN = range(4)
#: types of the parameters of a batch norm that cuDNN has, by that of what is normed
_OF_NORM: Final = {
    torch.float32: (torch.float32,),
    torch.float64: (torch.float64,),
    torch.float16: (torch.float32,),
}
#: types that cuDNN samples, and the channels that it can
_SAMPLED: Final = (torch.float64, torch.float32, torch.float16)
_MOST_CHANNELS: Final = 1024


def whole(op: Any, *args: Any, **kwargs: Any) -> Any:
    """Torch's composite in C++; `decompose` would take one in Python, of other bits."""
    return op._op_dk(torch._C.DispatchKey.CompositeImplicitAutograd, *args, **kwargs)


def _softmax(op: Any, given: Tensor, dim: int, dtype: torch.dtype | None = None) -> Tensor:
    fused = given.dtype is torch.float16 and dtype is torch.float32
    kernel = getattr(_aten, f"_{op._schema.name[6:]}")
    made: Tensor = kernel(given, dim, True) if fused else whole(op, given, dim, dtype)
    return made


def _batch_norm(op: Any, given: Tensor, *rest: Any) -> Any:
    weight, bias, mean, var, train, momentum, eps, enabled = rest
    channels = (weight, bias, mean, var)
    suits = (
        enabled
        and given.dim() >= 3
        and given.numel() > 0
        and weight is not None
        and bias is not None
        and (mean is None) == (var is None)
        and (train or mean is not None)
        and given.shape[0] <= (880801 if train else 65535)
        and (weight.dtype in _OF_NORM.get(given.dtype, ()))
    )
    if not suits:
        return whole(op, given, *rest)
    given = given.contiguous(memory_format=torch._prims_common.suggest_memory_format(given))
    return (*_aten.cudnn_batch_norm(given, *channels, train, momentum, eps), 1)


def _attention(
    op: Any, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None,
    dropout: float = 0.0, causal: bool = False, *, scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:  # fmt: skip
    kernel = _aten._fused_sdp_choice(
        query, key, value, mask, dropout, causal, scale=scale, enable_gqa=enable_gqa
    )
    if mask is not None and mask.dtype is torch.bool:
        least = -65504.0 if kernel == _CUDNN else -math.inf
        mask = torch.zeros(mask.shape, dtype=query.dtype).masked_fill_(~mask, least)
    graded = torch.is_grad_enabled() and any(t.requires_grad for t in (query, key, value))
    if kernel == _FLASH:
        width = query.shape[-1]
        filled = [pad(each, (0, -width % 8)) if width % 8 else each for each in (query, key, value)]
        scale = 1 / math.sqrt(width) if scale is None else scale
        made = _aten._scaled_dot_product_flash_attention(*filled, dropout, causal, scale=scale)
        return made[0] if width % 8 == 0 else made[0][..., :width]  # type: ignore[no-any-return]
    if kernel == _MATH:
        made = _aten._scaled_dot_product_attention_math(
            query, key, value, mask, dropout, causal, None, scale=scale, enable_gqa=enable_gqa
        )
    elif kernel == _CUDNN:
        made = _aten._scaled_dot_product_cudnn_attention(
            query, key, value, mask, graded, dropout, causal, scale=scale
        )
    else:
        if mask is not None:
            mask = _in_rows_of_eight(mask).expand(*query.shape[:3], key.shape[2])
        made = _aten._scaled_dot_product_efficient_attention(
            query, key, value, mask, graded, dropout, causal, scale=scale
        )
    output: Tensor = made[0]
    return output


def _in_rows_of_eight(mask: Tensor) -> Tensor:
    """In memory whose rows begin at multiples of eight elements."""
    if mask.dim() and mask.stride(-1) == 1 and all(step % 8 == 0 for step in mask.stride()[:-1]):
        return mask
    width = mask.shape[-1]
    return pad(mask, (0, 8 - width % 8))[..., :width]


def _grid_sampler(
    op: Any, given: Tensor, grid: Tensor, way: int, padding: int, align: bool
) -> Tensor:
    suits = (
        align
        and way == padding == 0  # bilinear, zeros
        and torch._C._get_cudnn_enabled()
        and given.dim() == 4
        and given.shape[1] <= _MOST_CHANNELS
        and all(each.dtype in _SAMPLED and each.numel() for each in (given, grid))
    )
    made: Tensor = (
        _aten.cudnn_grid_sampler(given, grid)
        if suits
        else whole(op, given, grid, way, padding, align)
    )
    return made


def _singular_values(op: Any, given: Tensor, *, driver: str | None = None) -> Tensor:
    """As for any tensor: beneath a mode of dispatch torch would compute the vectors as well."""
    wanted = torch.is_grad_enabled() and given.requires_grad
    made: Tensor = _aten._linalg_svd(given, False, wanted, driver=driver)[1]
    return made


def _eigenvalues(op: Any, given: Tensor, half: str = "L") -> Tensor:
    wanted = torch.is_grad_enabled() and given.requires_grad
    made: Tensor = _aten._linalg_eigh(given, half, wanted)[0]
    return made


def _lstm_cell(op: Any, given: Tensor, states: list[Tensor], *weights: Any) -> Any:
    of_input, of_hidden, *biases = weights
    gates = linear(given, of_input), linear(states[0], of_hidden)
    return _aten._thnn_fused_lstm_cell(*gates, states[1], *biases)[:2]


def _gru_cell(op: Any, given: Tensor, hidden: Tensor, *weights: Any) -> Any:
    of_input, of_hidden, *biases = weights
    gates = linear(given, of_input), linear(hidden, of_hidden)
    return _aten._thnn_fused_gru_cell(*gates, hidden, *biases)[0]


class _RmsNorm(torch.autograd.Function):
    """CUDA's kernel, with its own for the gradient."""

    @staticmethod
    def forward(ctx: Any, given: Any, shape: Any, weight: Any, eps: Any) -> Any:
        made, rstd = KERNELS[_aten._fused_rms_norm.default](given, shape, weight, eps)
        ctx.save_for_backward(given, weight, rstd)
        ctx.shape = shape
        ctx.mark_non_differentiable(rstd)
        return made, rstd

    @staticmethod
    def backward(ctx: Any, grad: Any, _: Any) -> Any:
        given, weight, rstd = ctx.saved_tensors
        wanted = [ctx.needs_input_grad[0], ctx.needs_input_grad[2]]
        of_given, of_weight = KERNELS[_aten._fused_rms_norm_backward.default](
            grad, given, ctx.shape, rstd, weight, wanted
        )
        return of_given, None, of_weight, None


def _rms_norm(op: Any, given: Tensor, shape: Any, weight: Any = None, eps: Any = None) -> Any:
    return _RmsNorm.apply(given, shape, weight, eps)


#: by name, without the leading "aten::"
COMPOSITES: Final[dict[str, Callable[..., Any]]] = {
    "softmax.int": _softmax,
    "log_softmax.int": _softmax,
    "_batch_norm_impl_index": _batch_norm,
    "scaled_dot_product_attention": _attention,
    "grid_sampler": _grid_sampler,
    "lstm_cell": _lstm_cell,
    "gru_cell": _gru_cell,
    "_fused_rms_norm": _rms_norm,
    "linalg_svdvals": _singular_values,
    "linalg_eigvalsh": _eigenvalues,
}
