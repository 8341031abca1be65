"""`torch.accelerator` says "cuda", as on a machine with a GPU."""

from typing import Any

import torch

from jgpu.device.cuda import devices, memory, streams
from jgpu.device.cuda.devices import another
from jgpu.device.tracebacks import sealed

__all__ = ["install"]

_KIND = torch.device("cuda")


def current_accelerator(check_available: bool = False) -> torch.device:
    """torch.device("cuda")"""
    return _KIND


class device_index(devices.device):  # noqa: N801 - torch's name
    """Context in which the device of the given index is the current one."""

    def __init__(self, device: int | None, /) -> None:
        super().__init__(device)


def get_device_capability(device: Any = None, /) -> dict[str, Any]:
    """The dtypes that the device computes in."""
    devices.check_index(device)
    return {
        "supported_dtypes": {
            torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.bool,
            torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64,
            torch.complex128, torch.complex32,
        }
    }  # fmt: skip


def install() -> None:
    """Replace the functions of `torch.accelerator`."""
    target: Any = torch.accelerator
    replaced: dict[str, Any] = {
        "is_available": devices.is_available,
        "device_count": devices.device_count,
        "current_accelerator": current_accelerator,
        "current_device_index": devices.current_device,
        "current_device_idx": devices.current_device,
        "set_device_index": devices.set_device,
        "set_device_idx": devices.set_device,
        "device_index": device_index,
        "synchronize": devices.synchronize,
        "current_stream": streams.current_stream,
        "set_stream": streams.set_stream,
        "get_device_capability": get_device_capability,
    }
    for name in (
        "empty_cache", "max_memory_allocated", "max_memory_reserved", "memory_allocated",
        "memory_reserved", "memory_stats", "reset_accumulated_memory_stats",
        "reset_peak_memory_stats",
    ):  # fmt: skip
        replaced[name] = getattr(memory, name)
    replaced["get_memory_info"] = memory.mem_get_info
    for name, shared in replaced.items():
        value = sealed(another(shared))
        if hasattr(target, name):
            setattr(target, name, value)
        if hasattr(target.memory, name):
            setattr(target.memory, name, value)
