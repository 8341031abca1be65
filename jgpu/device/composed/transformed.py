"""Tensors inside a transform of `torch.func`: wrapped by torch, without a geometry that we know.

Composites come with them to the kernels of this folder at the level of their transform. What torch
is called with there it unwraps itself, one transform after the other, down to the device's tensors.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import torch

from jgpu.device.tensor import DeviceTensor, device

__all__ = ["are_ours", "is_transformed"]

_is_wrapped: Any = torch._C._functorch.is_functorch_wrapped_tensor


def are_ours(values: Iterable[Any]) -> bool:
    """Whether all tensors among these are the device's, wrapped or not."""
    return all(
        type(each) is DeviceTensor or (each.device == device() and _is_wrapped(each))
        for each in values
        if isinstance(each, torch.Tensor)
    )


def is_transformed(values: Sequence[Any]) -> bool:
    """Whether all tensors among these are the device's, and some are inside a transform."""
    # most are plain, which is quickly seen
    if all(type(each) is DeviceTensor or not isinstance(each, torch.Tensor) for each in values):
        return False
    return are_ours(values)
