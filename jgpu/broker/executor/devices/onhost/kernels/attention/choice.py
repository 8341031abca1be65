"""Which attention kernel torch takes on an H200: `_fused_sdp_choice`, and the one without a kernel.

The rules are those of PyTorch's `sdp_utils.cpp` for compute capability 9.0 and cuDNN 9.15, in the
order and under the switches that torch has when it is asked.
"""

from collections.abc import Callable
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor

from jgpu.broker.executor.devices.onhost.kernels.drawing.dropout import drop
from jgpu.broker.executor.devices.onhost.kernels.drawing.launches import increment
from jgpu.broker.executor.devices.onhost.kernels.philox import Philox
from jgpu.broker.executor.devices.onhost.kernels.tables import drawing, kernel

__all__: list[str] = []

_MATH, _FLASH, _EFFICIENT, _CUDNN = range(4)
_HALVES: Final = (torch.float16, torch.bfloat16)
_C: Any = torch._C


class _Offered(NamedTuple):
    query: Tensor
    key: Tensor
    value: Tensor
    mask: Tensor | None
    dropout: float
    causal: bool
    grouped: bool

    @property
    def tensors(self) -> tuple[Tensor, Tensor, Tensor]:
        return self.query, self.key, self.value

    def of_types(self, *types: torch.dtype) -> bool:
        return self.query.dtype in types and all(
            each.dtype is self.query.dtype for each in self.tensors
        )

    def dense(self, *, ignoring_single: bool, grouping: bool = True) -> bool:
        """What every fused kernel asks of sizes and strides; `grouping`: of few keys for many."""
        if any(each.dim() != 4 for each in self.tensors):
            return False
        if 0 in (*self.query.shape[1:3], self.key.shape[2]):
            return False
        if self.mask is not None and self.mask.dim() and self.mask.stride(-1) != 1:
            return False
        return self._heads_fit(grouping) and all(
            each.stride(-1) == 1 or (ignoring_single and each.shape[-1] == 1)
            for each in self.tensors
        )

    def _heads_fit(self, grouping: bool) -> bool:
        (batch, heads), (one, keys), (two, values) = (each.shape[:2] for each in self.tensors)
        if not batch == one == two:
            return False
        if self.grouped and grouping:
            return bool(keys == values and keys and heads % keys == 0)
        return bool(heads == keys == values)


def _takes_flash(asked: _Offered) -> bool:
    features = {each.shape[-1] for each in asked.tensors}
    return (
        bool(_C._get_flash_sdp_enabled())
        and asked.mask is None
        and asked.of_types(*_HALVES)
        and asked.dense(ignoring_single=True)
        and len(features) == 1
        and features.pop() <= 256
        and not (asked.causal and asked.query.shape[2] != asked.key.shape[2])
    )


def _takes_efficient(asked: _Offered) -> bool:
    if not _C._get_mem_efficient_sdp_enabled() or not asked.of_types(torch.float32, *_HALVES):
        return False
    if not asked.dense(ignoring_single=False, grouping=False):
        return False
    unit = 16 // asked.query.itemsize  # what a matrix unit reads at once
    widths = asked.query.shape[3], asked.key.shape[3], asked.value.shape[3]
    return (
        widths[0] == widths[1]
        and all(width and width % unit == 0 for width in widths)
        and all(not each.numel() or each.storage_offset() % unit == 0 for each in asked.tensors)
    )


def _takes_cudnn(asked: _Offered) -> bool:
    if not _C._get_cudnn_sdp_enabled() or not asked.of_types(*_HALVES):
        return False
    strict = torch.are_deterministic_algorithms_enabled()
    if strict and not torch.is_deterministic_algorithms_warn_only_enabled():
        return False
    if not asked.dense(ignoring_single=True) or not _mask_fits(asked):
        return False
    batch, heads, length, features = asked.query.shape
    values, keys = asked.value.shape[3], asked.key.shape[2]
    most = 192 if (features, values) == (192, 128) else 128
    return (
        max(batch, heads) <= 65535
        and max(features, values) <= most
        and features % 8 == values % 8 == 0
        and keys != 1
        and not (asked.dropout and length == 1)
        and (asked.dropout * 16).is_integer()
    )


def _mask_fits(asked: _Offered) -> bool:
    mask = asked.mask
    if mask is None:
        return True
    if mask.requires_grad or mask.dim() not in (2, 4):
        return False
    full = *asked.query.shape[:3], asked.key.shape[2]
    return all(
        size in (1, whole)
        for size, whole in zip(reversed(mask.shape), reversed(full), strict=False)
    )


_RULES: Final[dict[int, Callable[[_Offered], bool]]] = {
    _MATH: lambda asked: bool(_C._get_math_sdp_enabled()),
    _FLASH: _takes_flash,
    _EFFICIENT: _takes_efficient,
    _CUDNN: _takes_cudnn,
}


@kernel("_fused_sdp_choice")
def _choice(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, dropout: float, causal: bool,
    scale: float | None, grouped: bool,
) -> int:  # fmt: skip
    asked = _Offered(query, key, value, mask, float(dropout), causal, grouped)
    for number in _C._get_sdp_priority_order():
        rule = _RULES.get(int(number))
        if rule is not None and rule(asked):
            return int(number)
    raise RuntimeError("No available kernel. Aborting execution.")


# -- without a kernel of its own -----------------------------------------------------------------


def _math_increment(
    query: Tensor, key: Tensor, value: Tensor, mask: Any, dropout: float, causal: bool,
    dropped: Any, *rest: Any,
) -> int:  # fmt: skip
    drawn = 0 < dropout < 1 and dropped is None
    return increment(query.shape[:-1].numel() * key.shape[-2]) if drawn else 0


@drawing("_scaled_dot_product_attention_math", increment=_math_increment)
def _math(
    draw: Philox, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, dropout: float,
    causal: bool, dropped: Tensor | None, scale: float | None, grouped: bool,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Torch's own composite, whose weights are dropped as on CUDA."""
    whole = torch.ops.aten._scaled_dot_product_attention_math.default
    if dropped is not None or not dropout:
        rest = mask, dropout, causal, dropped
        made: tuple[Tensor, Tensor] = whole(
            query, key, value, *rest, scale=scale, enable_gqa=grouped
        )
        return made
    _, weights = whole(query, key, value, mask, 0.0, causal, scale=scale, enable_gqa=grouped)
    weights, _ = drop(draw, weights, dropout)
    if grouped and weights.dim() > 2:
        value = value.repeat_interleave(weights.shape[-3] // value.shape[-3], -3)
    return weights @ value, weights
