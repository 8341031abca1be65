"""torch's switches of attention: which kernels are allowed, and in which order torch tries them.

A program without an order of its own gets the order that torch chooses for this GPU.
"""

from contextlib import suppress
from typing import Any, Final

import torch

from jgpu.wire.switches import ATTENTION, Flags

__all__ = ["apply_attention"]

_C: Any = torch._C
#: torch's order before it has seen a GPU
_COMPILED_ORDER: Final = tuple(_C._get_sdp_priority_order())


class _GpuOrder:
    """The order of attention kernels that torch has chosen for this GPU; () before it is known."""

    order: tuple[int, ...] = ()


def apply_attention(flags: Flags) -> None:
    """Set torch's switches of attention to those of a program."""
    gpu_order = _gpu_order()
    for place, word in enumerate(ATTENTION):
        setter = getattr(_C, f"_set_sdp_use_{word}", None)
        if setter is not None:
            setter(bool(flags.attention >> place & 1))
    _C._set_sdp_priority_order(list(flags.attention_order or gpu_order))
    _C._set_math_sdp_allow_fp16_bf16_reduction(flags.attention_reduces)


def _gpu_order() -> tuple[int, ...]:
    """Return torch's own order, which depends on the GPU.

    torch sets its order when it first chooses a kernel in a process, and overwrites any order that
    was set before. So this makes it choose one before the first order of a program is set.
    """
    if not _GpuOrder.order and torch.cuda.is_initialized():
        _C._set_sdp_priority_order(list(_COMPILED_ORDER))
        with suppress(RuntimeError):
            _choose_a_kernel()
        _GpuOrder.order = tuple(_C._get_sdp_priority_order())
    return _GpuOrder.order or _COMPILED_ORDER


def _choose_a_kernel() -> None:
    heads = torch.empty(1, 1, 8, 8, dtype=torch.float16, device="cuda")
    torch.ops.aten._fused_sdp_choice.default(heads, heads, heads)
