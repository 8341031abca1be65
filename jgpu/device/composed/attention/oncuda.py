"""Attention on a CUDA executor: the kernel that its device would take, called by name.

Natively a composite asks the device which kernel suits, then prepares its arguments. Here the
executor's is asked, once for each combination of geometries and switches, and what follows is done
on the notebook's tensors, so that torch's own derivative formulas apply.
"""

import math
from typing import Any, Final

import torch
from torch import Tensor

from jgpu.device import current, flags
from jgpu.device.composed.attention.arguments import MASKED, additive, with_a_batch
from jgpu.device.tensor import DeviceTensor
from jgpu.wire import messages as m
from jgpu.wire import program as wire

__all__ = ["attend"]

_MATH, _FLASH, _EFFICIENT, _CUDNN = range(4)
#: what cuDNN is given instead, for it makes NaN of infinity
_MASKED_IN_CUDNN: Final = -65504.0
#: elements that the rows of a mask, and the features of flash attention, are multiples of
_ALIGNED: Final = 8
#: offsets that differ by a multiple of this are aligned alike
_PERIOD: Final = 64
_C: Any = torch._C
_aten: Any = torch.ops.aten

#: answers of the device, by connection and question; few, for a model has few geometries
_known: dict[tuple[Any, ...], int] = {}
_MOST: Final = 4096


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None = None,
    dropout: float = 0.0,
    causal: bool = False,
    *,
    scale: float | None = None,
    grouped: bool = False,
) -> Tensor:
    """`scaled_dot_product_attention` of device tensors, as native CUDA computes it."""
    _check(query, key, value, mask)
    batch = with_a_batch((query, key, value) if mask is None else (query, key, value, mask))
    if batch is None:
        return _by_kernel(query, key, value, mask, dropout, causal, scale, grouped)
    query, key, value, *masks = batch
    mask = masks[0] if masks else None
    return _by_kernel(query, key, value, mask, dropout, causal, scale, grouped).squeeze(0)


def _by_kernel(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    dropout: float,
    causal: bool,
    scale: float | None,
    grouped: bool,
) -> Tensor:
    kernel = _kernel((query, key, value, mask), dropout, causal, scale, grouped)
    differentiated = torch.is_grad_enabled() and any(
        each.requires_grad for each in (query, key, value)
    )
    made: Any
    if kernel == _FLASH:
        return _flash(query, key, value, dropout, causal, scale)
    if kernel == _EFFICIENT:
        bias = additive(mask, query.dtype, MASKED)
        bias = None if bias is None else _laid_out(bias, query, key)
        made = _aten._scaled_dot_product_efficient_attention.default(
            query, key, value, bias, differentiated, dropout, causal, scale=scale
        )
    elif kernel == _CUDNN:
        bias = additive(mask, query.dtype, _MASKED_IN_CUDNN)
        made = _aten._scaled_dot_product_cudnn_attention.default(
            query, key, value, bias, differentiated, dropout, causal, False, scale=scale
        )
    else:
        bias = additive(mask, query.dtype, MASKED)
        made = _aten._scaled_dot_product_attention_math.default(
            query, key, value, bias, dropout, causal, None, scale=scale, enable_gqa=grouped
        )
    output: Tensor = made[0]
    return output


def _flash(
    query: Tensor, key: Tensor, value: Tensor, dropout: float, causal: bool, scale: float | None
) -> Tensor:
    """Flash attention takes no mask, and features in whole units."""
    width = query.shape[-1]
    padded = [_padded(each) for each in (query, key, value)]
    by = 1.0 / math.sqrt(width) if scale is None else scale
    made: Tensor = _aten._scaled_dot_product_flash_attention.default(
        *padded, dropout, causal, False, scale=by
    )[0]
    return made if made.shape[-1] == width else made[..., :width]


def _check(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> None:
    """What torch looks at first, in its words."""
    given = (query, key, value)
    dtypes, dims = [each.dtype for each in given], [each.dim() for each in given]
    if len(set(dtypes)) > 1:
        raise RuntimeError(
            "Expected query, key, and value to have the same dtype, but got query.dtype: "
            f"{dtypes[0]} key.dtype: {dtypes[1]} and value.dtype: {dtypes[2]} instead."
        )
    if min(dims) < 2:
        raise RuntimeError(
            "Expected query, key, and value to all be  at least 2 dimensional, but got query.dim: "
            f"{dims[0]} key.dim: {dims[1]} and value.dim: {dims[2]} instead."
        )
    if mask is not None and mask.dtype not in (torch.bool, torch.float32, dtypes[0]):
        raise RuntimeError(
            "Expected attn_mask dtype to be bool or float or to match query dtype, but got "
            f"attn_mask.dtype: {mask.dtype} and  query.dtype: {dtypes[0]} instead."
        )


def _kernel(
    tensors: tuple[Tensor, Tensor, Tensor, Tensor | None],
    dropout: float,
    causal: bool,
    scale: float | None,
    grouped: bool,
) -> int:
    """The number of the kernel that the device would take."""
    session = current.session
    graded = torch.is_grad_enabled()
    query, key, value, mask = tensors
    wanted = (
        graded and query.requires_grad,
        graded and key.requires_grad,
        graded and value.requires_grad,
        graded and mask is not None and mask.requires_grad,
    )
    shown = None if mask is None else _seen(mask)
    geometries = _seen(query), _seen(key), _seen(value), shown
    question = (
        *(*geometries, dropout, causal, scale, grouped, wanted, _allowed()),
        *(flags.attention_order(), flags.current()),
    )
    asked = (session.connection.generation, *question)
    found = _known.get(asked)
    if found is None:
        (found,) = session.choose(lambda request: m.ChooseAttention(request, *question))
        if len(_known) >= _MOST:
            _known.clear()
        _known[asked] = found
    return found


def _allowed() -> tuple[int, ...]:
    switches = (
        (_MATH, _C._get_math_sdp_enabled),
        (_FLASH, _C._get_flash_sdp_enabled),
        (_EFFICIENT, _C._get_mem_efficient_sdp_enabled),
        (_CUDNN, _C._get_cudnn_sdp_enabled),
    )
    return tuple(kernel for kernel, is_on in switches if is_on())


def _seen(tensor: Tensor) -> wire.Geometry:
    """The geometry, with the offset as far as alignment depends on it."""
    assert isinstance(tensor, DeviceTensor)
    geometry = tensor._g
    return wire.Geometry(
        geometry.wire.dtype, geometry.shape, geometry.stride, tensor._o % _PERIOD, geometry.bits
    )


def _laid_out(bias: Tensor, query: Tensor, key: Tensor) -> Tensor:
    """A mask as the memory-efficient kernel reads it: of aligned rows, one for each score."""
    *steps, last = bias.stride() or (1,)
    if last != 1 or any(step % _ALIGNED for step in steps):
        width = bias.shape[-1]
        # a whole unit more where the width is a multiple already, as torch does it
        bias = torch.nn.functional.pad(bias, (0, _ALIGNED - width % _ALIGNED))[..., :width]
    return bias.expand(query.shape[0], query.shape[1], query.shape[2], key.shape[2])


def _padded(tensor: Tensor) -> Tensor:
    """Features filled up with zeros to a multiple of what flash attention computes at once."""
    missing = -tensor.shape[-1] % _ALIGNED
    return torch.nn.functional.pad(tensor, (0, missing)) if missing else tensor
