"""Attention where the executor computes on the CPU: its flash attention, called by name.

The host's torch is asked, once for each combination of geometries. Without dropout its flash
attention is called by name, which wants a mask in numbers and nothing else; what it does not
compute is left to stand-ins (`composites`), or inside transforms to torch's way for all devices.
"""

from typing import Any, Final

import torch
from torch import Tensor

from jgpu.device.composed.attention.arguments import MASKED, additive, with_a_batch
from jgpu.device.geometry import InternedGeometry, intern
from jgpu.device.tensor import DeviceTensor

__all__ = ["attend_in_transform", "attend_on_host", "on_host"]

#: the number that torch has for flash attention
_FLASH: Final = 1
#: mask, dropout, and whether it is causal, where a call does not say so
_UNSAID: Final[tuple[Any, ...]] = (None, 0.0, False)
_C: Any = torch._C
_aten: Any = torch.ops.aten

#: whether the host takes flash attention, by all that it looks at; sequences that grow bring many
on_host: dict[tuple[Any, ...], bool] = {}
_MOST_ON_HOST: Final = 1 << 16
#: bytes of the largest tensor that the host is asked about with one of its size
_MOST_BYTES: Final = 1 << 26


def attend_on_host(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor | None:
    """`scaled_dot_product_attention` as a CPU computes it, where it would by flash attention.

    None where it would not, or where torch is to look at the arguments itself.
    """
    if not 3 <= len(args) <= 6 or (kwargs and kwargs.keys() != {"scale"}):
        return None
    query, key, value, mask, dropout, causal = (*args, *_UNSAID[len(args) - 3 :])
    given = (query, key, value) if mask is None else (query, key, value, mask)
    if dropout or set(map(type, given)) != {DeviceTensor} or not _is_flash_on_host(given, causal):
        return None
    return _flash_on_host(given, causal, kwargs)


def attend_in_transform(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor | None:
    """The same inside transforms of `torch.func`; None where a CPU goes torch's way for all."""
    named = dict(kwargs)
    grouped = named.pop("enable_gqa", False)
    query, key, value, mask, dropout, causal = (*args, *_UNSAID[len(args) - 3 :])
    given: tuple[Tensor, ...] = (query, key, value, *(() if mask is None else (mask,)))
    typed = mask is None or _is_mask(mask, query) or mask.dtype is torch.float32
    if dropout or not typed or not _C._get_flash_sdp_enabled():
        return None
    batch = with_a_batch(given)
    given = given if batch is None else batch
    if not _is_known_flash(given, causal, grouped=grouped):
        return None
    made = _flash_on_host(given, causal, named)
    return made if batch is None else made.squeeze(0)


def _flash_on_host(given: tuple[Tensor, ...], causal: bool, kwargs: dict[str, Any]) -> Tensor:
    query, key, value = given[:3]
    if any(0 in each.shape for each in given):
        return _of_nothing(query, key, value)
    if len(given) > 3:
        kwargs = {**kwargs, "attn_mask": additive(given[3], query.dtype, MASKED)}
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
    if len(given) > 3 and (causal or given[3].requires_grad or not _is_mask(given[3], given[0])):
        return False
    return _is_known_flash(given, causal)


def _is_known_flash(given: tuple[Tensor, ...], causal: bool, *, grouped: bool = False) -> bool:
    graded = torch.is_grad_enabled()
    wanted = tuple([each.requires_grad for each in given]) if graded else ()
    asked = (*map(_lying, given), causal, wanted, *((grouped,) if grouped else ()))
    found = on_host.get(asked)
    if found is None:
        if len(on_host) >= _MOST_ON_HOST:
            on_host.clear()
        found = on_host[asked] = _asked_of_host(given, causal, wanted, grouped)
    return found


def _is_mask(mask: Tensor, query: Tensor) -> bool:
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
