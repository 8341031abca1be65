"""Encoders in evaluation, whose padded places come back as zeros.

Natively `nn.TransformerEncoder` leaves such places out, by a nested tensor of the strided layout,
and fills them up at its end. The device has no such tensors: its layers go on with the mask, and
what stands where nothing was is replaced by the same zeros, before the norm.
"""

import functools
from typing import Any

import torch
from torch import Tensor

from jgpu.device.tensor import DeviceTensor
from jgpu.device.tracebacks import unseen

__all__ = ["install"]


def install() -> None:
    """Have encoders do so."""
    encoder: Any = torch.nn.TransformerEncoder
    encoder.forward = unseen(_padding_with_zeros(encoder.forward))


def _padding_with_zeros(original: Any) -> Any:
    @functools.wraps(original)
    def forward(
        self: Any,
        src: Tensor,
        mask: Tensor | None = None,
        src_key_padding_mask: Tensor | None = None,
        is_causal: bool | None = None,
    ) -> Tensor:
        def encoded() -> Tensor:
            made: Tensor = original(self, src, mask, src_key_padding_mask, is_causal)
            return made

        if mask is not None or not _leaves_padding_out(self, src, src_key_padding_mask):
            return encoded()
        assert src_key_padding_mask is not None
        padding = _as_booleans(src_key_padding_mask).unsqueeze(-1)
        if self.norm is None:
            return encoded().masked_fill(padding, 0.0)
        hook = self.norm.register_forward_pre_hook(
            lambda _, given: (given[0].masked_fill(padding, 0.0), *given[1:])
        )
        try:
            return encoded()
        finally:
            hook.remove()

    return forward


def _leaves_padding_out(encoder: Any, src: Tensor, padding: Tensor | None) -> bool:
    """Whether torch would, by its own conditions; the last one waits, as natively."""
    first = encoder.layers[0]
    return (
        type(src) is DeviceTensor
        and type(padding) is DeviceTensor
        and src.dim() == 3
        and torch.backends.mha.get_fastpath_enabled()
        and getattr(encoder, "use_nested_tensor", False)
        and not first.training
        and not torch.is_autocast_enabled()
        and not _is_differentiated(first, src)
        and (not getattr(encoder, "mask_check", True) or _is_left_aligned(_as_booleans(padding)))
    )


def _is_differentiated(layer: Any, src: Tensor) -> bool:
    if not torch.is_grad_enabled():
        return False
    parts = layer.self_attn, layer.norm1, layer.norm2, layer.linear1, layer.linear2
    return src.requires_grad or any(
        each.requires_grad for part in parts for each in part.parameters()
    )


def _as_booleans(padding: Tensor) -> Tensor:
    """A mask of numbers, which are added to the scores, says minus infinity where nothing is."""
    return padding if padding.dtype is torch.bool else padding != 0


def _is_left_aligned(padding: Tensor) -> bool:
    """Whether nothing but padding follows padding, in each row."""
    return not bool((padding[:, :-1] & ~padding[:, 1:]).any())
