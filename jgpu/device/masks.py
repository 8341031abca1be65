"""Masks of bytes, which torch takes for masks of booleans and warns of; meta kernels take none."""

from typing import Any, Final

import torch

from jgpu.device import warned
from jgpu.device.ops import OpInfo

__all__ = ["of_booleans"]

#: ops whose masks may be of bytes, as natively: which argument
_MASKED: Final = {
    "aten::index.Tensor": 1, "aten::index_put": 1, "aten::index_put_": 1, "aten::where.self": 0
}  # fmt: skip

_OF_INDEX: Final = (
    "indexing with dtype torch.uint8 is now deprecated, please use a dtype torch.bool instead."
)
_OF_WHERE: Final = (
    "where received a uint8 condition tensor. This behavior is deprecated and will be removed in a "
    "future version of PyTorch. Use a boolean condition instead."
)


def of_booleans(info: OpInfo, args: tuple[Any, ...]) -> tuple[Any, ...] | None:
    """The arguments with masks of booleans, where some are of bytes."""
    at = _MASKED.get(info.name)
    if at is None:
        return None
    many = isinstance(args[at], list | tuple)
    given = list(args[at]) if many else [args[at]]
    if not any(isinstance(mask, torch.Tensor) and mask.dtype is torch.uint8 for mask in given):
        return None
    if "index_put" in info.name and args[2].numel() == 1:
        return None  # natively refused
    warned.tell(((UserWarning, _OF_WHERE if info.name == "aten::where.self" else _OF_INDEX),))
    masks = [
        mask.bool() if isinstance(mask, torch.Tensor) and mask.dtype is torch.uint8 else mask
        for mask in given
    ]
    return (*args[:at], masks if many else masks[0], *args[at + 1 :])
