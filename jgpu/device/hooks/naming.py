"""What a notebook means by `cuda`, wherever it names a device."""

from typing import Any, Final

import torch

from jgpu.device.tensor import Backend

__all__ = ["translate"]

_Device = torch.device
_COMMON: Final = ("cuda", "cuda:0")


def translate(where: Any) -> Any:
    """The backend's device for anything that means `cuda`; everything else as it is."""
    if type(where) is str:
        if where in _COMMON:
            return Backend.device
        if where.startswith("cuda"):
            _check_index(torch.device(where).index)
            return Backend.device
        return where
    if type(where) is _Device:
        if where.type == "cuda":
            _check_index(where.index)
            return Backend.device
        return where
    if type(where) is int:
        _check_index(where)
        return Backend.device
    return where


def _check_index(index: int | None) -> None:
    if index:
        raise RuntimeError(
            "CUDA error: invalid device ordinal (this notebook has one device, cuda:0)"
        )
