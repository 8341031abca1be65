"""`torch.accelerator` says "cuda", as on a machine with a GPU."""

from typing import Any

import torch

from jgpu.device.cuda import devices, memory, streams
from jgpu.device.cuda.devices import another
from jgpu.device.cuda.refusals import refused_class
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


def empty_host_cache() -> None:
    """Do nothing: pinned memory is ordinary memory of the host, so there is no cache of it."""


def _get_stream(device_index: int) -> Any:
    return streams.current_stream(device_index)


def _is_allocator_initialized() -> bool:
    return devices.is_initialized()


def _set_allocator_settings(settings: str) -> None:
    """Accept the settings and do nothing: the allocator belongs to the executor."""


def _get_allocator_settings() -> str:
    return ""


Graph = refused_class(
    "Graph", "device graphs", "leave them out: the device makes its own of what repeats"
)

#: `torch._C._accelerator_*`. Most of torch's own functions expect an allocator or hooks of the
#: backend in C++, which this backend has not: they fail an internal assertion or crash the process.
_IN_C: dict[str, Any] = {
    "emptyCache": memory.empty_cache,
    "emptyHostCache": empty_host_cache,
    "getAllocatorSettings": _get_allocator_settings,
    "getDeviceCapability": get_device_capability,
    "getDeviceStats": memory.memory_stats_as_nested_dict,
    "getMemoryInfo": memory.mem_get_info,
    "getStream": _get_stream,
    "hooks_device_count": devices.device_count,
    "hooks_exchange_device": devices.check_index,
    "hooks_get_current_device": devices.current_device,
    "hooks_maybe_exchange_device": devices.check_index,
    "hooks_set_current_device": devices.set_device,
    "isAllocatorInitialized": _is_allocator_initialized,
    "resetAccumulatedStats": memory.reset_accumulated_memory_stats,
    "resetPeakStats": memory.reset_peak_memory_stats,
    "setAllocatorSettings": _set_allocator_settings,
    "setStream": streams.set_stream,
    "synchronizeDevice": devices.synchronize,
}


def install() -> None:
    """Replace the functions of `torch.accelerator` and the C++ functions that they call."""
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
        "empty_host_cache": empty_host_cache,
        "Graph": Graph,
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
    for name, shared in _IN_C.items():
        if hasattr(torch._C, name := f"_accelerator_{name}"):
            setattr(torch._C, name, sealed(another(shared)))
    for owner, name in (
        (torch._C, "_acceleratorGraph"),
        (getattr(target, "graphs", None), "Graph"),
    ):
        if hasattr(owner, name):
            setattr(owner, name, Graph)
