"""Indices of what has no elements: that no number is one follows from sizes alone.

Native kernels look before they start; meta kernels do not, and the device would tell only later.

Does not cover masks, whose size is what they hold, nor numbers out of range: the device tells.
"""

from typing import Any, Final

import torch

from jgpu.device.recording.ops import OpInfo
from jgpu.device.tensor import DeviceTensor
from jgpu.wire.formulas.shapes import broadcast

__all__ = ["check_empty", "fills_nothing"]

_INDEXING: Final = frozenset(
    f"aten::{name}"
    for name in (
        "index", "index_put", "index_put_", "_index_put_impl", "_index_put_impl_",
        "_unsafe_index", "_unsafe_index_put",
    )
)  # fmt: skip
#: what torch makes of `x[rows] = number` from 2.15 on
_FILLING: Final = frozenset({"aten::index_fill", "aten::index_fill_"})
#: types of indices that are no masks
_NUMBERS: Final = (torch.int64, torch.int32)


def check_empty(info: OpInfo, args: tuple[Any, ...]) -> None:
    """Raise in torch's words where a dimension of size 0 is indexed by at least one number."""
    if info.name.partition(".")[0] not in _INDEXING or args[0].numel():
        return
    pairs = [pair for pair in zip(args[0].shape, args[1], strict=False) if pair[1] is not None]
    if len(args[1]) > args[0].dim() or 0 not in (size for size, _ in pairs):
        return
    if all(type(index) is DeviceTensor and index.dtype in _NUMBERS for _, index in pairs):
        asked = broadcast(*(tuple(index.shape) for _, index in pairs))
        if asked is not None and 0 not in asked:
            raise IndexError("index is out of bounds for dimension with size 0")


def fills_nothing(info: OpInfo, args: tuple[Any, ...]) -> bool:
    """Whether a dimension of size 0 is to be filled at at least one place, which cannot be.

    Native torch names the place, which only the device knows: the op is to be waited for.
    """
    if info.name.partition(".")[0] not in _FILLING or not args[0].dim():
        return False
    shape, dim = args[0].shape, args[1]
    inside: bool = -len(shape) <= dim < len(shape)
    return inside and shape[dim] == 0 and bool(args[2].numel())
