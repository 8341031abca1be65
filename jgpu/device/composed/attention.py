"""Attention: the kernel that the executor's device itself would take, called by name.

Natively a composite asks the device which kernel suits, then prepares its arguments. On CUDA the
device is the executor's: it is asked once for each combination of geometries and switches, and what
follows is done on the notebook's tensors, so that torch's own derivative formulas apply.

Where the executor computes on the CPU the host's torch is asked, once for each combination, too.
Without dropout its flash attention is called by name, which wants a mask in numbers and nothing
else; what it does not compute is left to stand-ins (`composites`).
"""

import math
from typing import Any, Final

import torch
from torch import Tensor

from jgpu.device import current, flags
from jgpu.device.geometry import InternedGeometry, intern
from jgpu.device.tensor import DeviceTensor
from jgpu.wire import messages as m
from jgpu.wire import program as wire

__all__ = [
    "UNSAID",
    "attend",
    "attend_on_host",
    "flash_on_host",
    "is_known_flash",
    "is_mask",
    "on_host",
]

_MATH, _FLASH, _EFFICIENT, _CUDNN = range(4)
#: mask, dropout, and whether it is causal, where a call does not say so
UNSAID: Final[tuple[Any, ...]] = (None, 0.0, False)
_MASKED: Final = -math.inf
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
#: whether the host takes flash attention, by all that it looks at; sequences that grow bring many
on_host: dict[tuple[Any, ...], bool] = {}
_MOST_ON_HOST: Final = 1 << 16
#: bytes of the largest tensor that the host is asked about with one of its size
_MOST_BYTES: Final = 1 << 26


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
    kernel = _kernel((query, key, value, mask), dropout, causal, scale, grouped)
    differentiated = torch.is_grad_enabled() and any(
        each.requires_grad for each in (query, key, value)
    )
    made: Any
    if kernel == _FLASH:
        return _flash(query, key, value, dropout, causal, scale)
    if kernel == _EFFICIENT:
        bias = _additive(mask, query.dtype, _MASKED)
        bias = None if bias is None else _laid_out(bias, query, key)
        made = _aten._scaled_dot_product_efficient_attention.default(
            query, key, value, bias, differentiated, dropout, causal, scale=scale
        )
    elif kernel == _CUDNN:
        bias = _additive(mask, query.dtype, _MASKED_IN_CUDNN)
        made = _aten._scaled_dot_product_cudnn_attention.default(
            query, key, value, bias, differentiated, dropout, causal, False, scale=scale
        )
    else:
        bias = _additive(mask, query.dtype, _MASKED)
        made = _aten._scaled_dot_product_attention_math.default(
            query, key, value, bias, dropout, causal, None, scale=scale, enable_gqa=grouped
        )
    output: Tensor = made[0]
    return output


def attend_on_host(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor | None:
    """`scaled_dot_product_attention` as a CPU computes it, where it would by flash attention.

    None where it would not, or where torch is to look at the arguments itself.
    """
    if not 3 <= len(args) <= 6 or (kwargs and kwargs.keys() != {"scale"}):
        return None
    query, key, value, mask, dropout, causal = (*args, *UNSAID[len(args) - 3 :])
    given = (query, key, value) if mask is None else (query, key, value, mask)
    if dropout or set(map(type, given)) != {DeviceTensor} or not _is_flash_on_host(given, causal):
        return None
    return flash_on_host(given, causal, kwargs)


def flash_on_host(given: tuple[Tensor, ...], causal: bool, kwargs: dict[str, Any]) -> Tensor:
    """Flash attention of query, key, value and perhaps a mask, as the host computes it."""
    query, key, value = given[:3]
    if any(0 in each.shape for each in given):
        return _of_nothing(query, key, value)
    if len(given) > 3:
        kwargs = {**kwargs, "attn_mask": _additive(given[3], query.dtype, _MASKED)}
    made: Tensor = torch._scaled_dot_product_flash_attention_for_cpu(
        query, key, value, 0.0, causal, **kwargs
    )[0]
    return made


def _of_nothing(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """What newer releases of torch make of it; the kernel divides by the number of heads."""
    made = torch.zeros((*query.shape[:-1], value.shape[-1]), dtype=query.dtype, device=query.device)
    return made + (query.sum() + key.sum() + value.sum()) * 0


def _is_flash_on_host(given: tuple[DeviceTensor, ...], causal: bool) -> bool:
    """What the host's torch says of tensors that lie as these do, with no switch turned.

    Of a mask that is given and wants a gradient, or is causal as well, torch is to say more.
    """
    if not (_C._get_flash_sdp_enabled() and _C._get_math_sdp_enabled()):
        return False
    if len(given) > 3 and (causal or given[3].requires_grad or not is_mask(given[3], given[0])):
        return False
    return is_known_flash(given, causal)


def is_known_flash(given: tuple[Tensor, ...], causal: bool, *, grouped: bool = False) -> bool:
    """Whether the host takes flash attention for tensors that lie as these; asked once."""
    graded = torch.is_grad_enabled()
    wanted = tuple([each.requires_grad for each in given]) if graded else ()
    asked = (*map(_lying, given), causal, wanted, *((grouped,) if grouped else ()))
    found = on_host.get(asked)
    if found is None:
        if len(on_host) >= _MOST_ON_HOST:
            on_host.clear()
        found = on_host[asked] = _asked_of_host(given, causal, wanted, grouped)
    return found


def is_mask(mask: Tensor, query: Tensor) -> bool:
    """Whether it is of a type that flash attention takes as it is, or as truths."""
    return mask.dtype is torch.bool or mask.dtype is query.dtype


def _lying(tensor: Tensor) -> InternedGeometry:
    if type(tensor) is DeviceTensor:
        return tensor._g
    return intern(tensor.dtype, tuple(tensor.shape), tensor.stride(), 0)


def _asked_of_host(
    tensors: tuple[Tensor, ...], causal: bool, wanted: tuple[bool, ...], grouped: bool
) -> bool:
    shown = [*map(_lying, tensors)]
    if any(each.bits or each.nbytes > _MOST_BYTES for each in shown):
        return False
    if any(len(each.shape) != 4 for each in shown[:3]):
        return False  # of other dimensions it is never called by name, whatever torch would do
    # a transform would take the host's tensors for those of its function
    with torch._C._DisableFuncTorch():
        try:
            given = [
                torch.empty_strided(
                    each.shape, each.stride, dtype=each.dtype, device="cpu", requires_grad=graded
                )
                for each, graded in zip(shown, wanted or (False,) * len(shown), strict=True)
            ]
            mask = given[3] if len(given) > 3 else None
            choice = _aten._fused_sdp_choice.default(
                *given[:3], mask, 0.0, causal, enable_gqa=grouped
            )
            return bool(choice == _FLASH)
        except (RuntimeError, IndexError):  # which torch's composite says in words of its own
            return False


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
    preferred = tuple(int(kernel) for kernel in _C._get_sdp_priority_order())
    question = (
        *geometries, dropout, causal, scale, grouped, wanted, _allowed(), preferred, flags.current()
    )  # fmt: skip
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


def _additive(mask: Tensor | None, dtype: torch.dtype, least: float) -> Tensor | None:
    """A mask of booleans as numbers that are added to the scores."""
    if mask is None or mask.dtype is not torch.bool:
        return mask
    return torch.zeros_like(mask, dtype=dtype).masked_fill_(mask.logical_not(), least)


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
