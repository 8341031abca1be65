"""Which devices there are, what they are called, what they can do; and waiting for them.

There is one device, `cuda:0`. Its properties are the executor's, except that `total_memory` is what
this user may have.
"""

import functools
from types import FunctionType
from typing import Any, NoReturn

import torch

from jgpu.device import current
from jgpu.device.errors import refused
from jgpu.device.hooks.naming import translate
from jgpu.device.tensor import CUDA
from jgpu.device.tracebacks import unseen

__all__ = ["REPLACED", "another", "check_index", "install"]


def another(value: Any) -> Any:
    """The same function as another object: torch's compiler keeps tables by function."""
    if not isinstance(value, FunctionType):
        return value
    made = FunctionType(
        value.__code__, value.__globals__, None, value.__defaults__, value.__closure__
    )
    return functools.update_wrapper(made, value)


def check_index(device: Any = None) -> int:
    """0 for anything that means the device; `RuntimeError` or `ValueError` for anything else."""
    if device is None or device == 0:
        return 0
    if isinstance(device, str):
        device = torch.device(device)
    where = translate(device)
    if isinstance(where, torch.device) and where.type == "cuda":
        return 0
    if isinstance(where, int):
        return int(where)
    raise ValueError(f"Expected a cuda device, but got: {device}")


def is_available() -> bool:
    """Whether there is a device: yes."""
    return True


def device_count() -> int:
    """One."""
    return 1


def current_device() -> int:
    """The one device's index."""
    return 0


def set_device(device: Any) -> None:
    """Choose the one device."""
    if isinstance(device, int) and device < 0:
        return
    check_index(device)


class device:  # noqa: N801 - torch's name
    """Context in which the given device is the current one, as it always is."""

    def __init__(self, device: Any) -> None:
        self.idx = check_index(None if isinstance(device, int) and device < 0 else device)
        self.prev_idx = 0

    def __enter__(self) -> None:
        """Nothing changes."""

    def __exit__(self, *args: object) -> None:
        """Nothing changes back."""


class device_of(device):  # noqa: N801 - torch's name
    """Context in which the given object's device is the current one."""

    def __init__(self, obj: Any) -> None:
        super().__init__(0)


def init() -> None:
    """Connect to the broker now, rather than at first use."""
    current.session.device_facts()


def is_initialized() -> bool:
    """Whether this process has used the device."""
    return current.session.used and not current.session.connection.is_forked


def _lazy_init() -> None:
    if current.session.connection.is_forked:
        raise RuntimeError(
            "Cannot re-initialize CUDA in forked subprocess. To use CUDA with multiprocessing, "
            "you must use the 'spawn' start method"
        )


def _lazy_call(callable: Any, **kwargs: Any) -> None:  # noqa: A002 - torch's name
    callable()


def _is_in_bad_fork() -> bool:
    return current.session.connection.is_forked


def synchronize(device: Any = None) -> None:
    """Wait until all work is done."""
    check_index(device)
    current.session.synchronize()


class Properties:
    """What `get_device_properties` returns; unknown facts of the hardware are zero."""

    def __init__(self) -> None:
        facts = current.session.device_facts()
        ready = current.session.connection.ready
        limit = ready.limit if ready is not None else 0
        self.name = facts.name
        self.major, self.minor = facts.capability
        self.total_memory = min(limit, facts.capacity) if limit else facts.capacity
        self.multi_processor_count = facts.multiprocessors or facts.threads
        self.is_integrated = 0
        self.is_multi_gpu_board = 0
        self.max_threads_per_multi_processor = 2048
        self.max_threads_per_block = 1024
        self.warp_size = 32
        self.regs_per_multiprocessor = 65536
        self.shared_memory_per_block = 49152
        self.shared_memory_per_block_optin = 0
        self.shared_memory_per_multiprocessor = 0
        self.L2_cache_size = 0
        self.clock_rate = 0
        self.memory_clock_rate = 0
        self.memory_bus_width = 0
        self.gcnArchName = self.name
        self.uuid = ""
        self.pci_bus_id = self.pci_device_id = self.pci_domain_id = 0

    def __repr__(self) -> str:
        return (
            f"_CudaDeviceProperties(name='{self.name}', major={self.major}, minor={self.minor}, "
            f"total_memory={self.total_memory >> 20}MB, "
            f"multi_processor_count={self.multi_processor_count})"
        )


def get_device_properties(device: Any = None) -> Properties:
    """Facts of the device; connects at first use."""
    check_index(device)
    return Properties()


def get_device_name(device: Any = None) -> str:
    """The device's name, which ends in "(shared)"."""
    return get_device_properties(device).name


def get_device_capability(device: Any = None) -> tuple[int, int]:
    """The CUDA capability; (0, 0) where the shared device is no GPU."""
    check_index(device)
    return current.session.device_facts().capability


def is_bf16_supported(including_emulation: bool = True) -> bool:
    """Whether the device computes in bfloat16."""
    facts = current.session.device_facts()
    return not facts.has_cuda_kernels or including_emulation or facts.capability >= (8, 0)


def is_tf32_supported() -> bool:
    """Whether the device has TF32."""
    return current.session.device_facts().capability >= (8, 0)


def can_device_access_peer(device: Any, peer_device: Any) -> bool:
    """There is no peer."""
    check_index(device)
    check_index(peer_device)
    return False


def get_arch_list() -> list[str]:
    """The architecture of the device, as wheels name it."""
    major, minor = current.session.device_facts().capability
    return [f"sm_{major}{minor}"] if major else []


def get_gencode_flags() -> str:
    """Flags for a compiler that has no use here."""
    return ""


def get_sync_debug_mode() -> int:
    """0: waits are not reported."""
    return 0


def set_sync_debug_mode(debug_mode: Any) -> None:
    """Only "default" can be had."""
    if debug_mode not in (0, "default"):
        raise refused("set_sync_debug_mode", "look at jgpu status for what waits")


def ipc_collect() -> None:
    """Nothing is shared between processes by address."""


def _get_device_index(device: Any, optional: bool = False, allow_cpu: bool = False) -> int:
    if allow_cpu and device is not None and torch.device(device).type == "cpu":
        return -1
    if device is None and not optional:
        raise ValueError("Expected a torch.device with a specified index or an integer")
    return check_index(device)


def _device_number(device: Any) -> torch.device:
    check_index(device)
    return CUDA


def _utilization(name: str) -> Any:
    def ask(device: Any = None) -> NoReturn:
        raise refused(f"torch.cuda.{name}()", "`jgpu status` shows what the device is doing")

    return ask


class _Module(type(torch.cuda)):  # type: ignore[misc]
    """`torch.cuda` itself, for the one attribute that libraries read and that changes."""

    @property
    def _initialized(self) -> bool:
        return is_initialized()

    @_initialized.setter
    def _initialized(self, value: bool) -> None:
        """Torch's own; what it says is of no interest."""


def install() -> None:
    """What is no function of `torch.cuda`."""
    import torch.cuda._utils

    torch.cuda.__class__ = _Module
    torch.cuda._utils._get_device_index = unseen(_get_device_index)


REPLACED: dict[str, dict[str, Any]] = {
    "": {
        function.__name__: function
        for function in (
            is_available, device_count, current_device, set_device, device, device_of, init,
            is_initialized, _lazy_init, _lazy_call, _is_in_bad_fork, synchronize,
            get_device_properties, get_device_name, get_device_capability, is_bf16_supported,
            is_tf32_supported, can_device_access_peer, get_arch_list, get_gencode_flags,
            get_sync_debug_mode, set_sync_debug_mode, ipc_collect, _get_device_index,
        )
    }
    | {
        "_get_device": _device_number,
        "_DeviceGuard": device,
        "_exchange_device": check_index,
        "_maybe_exchange_device": another(check_index),
        "_nvml_based_avail": is_available,
        "_device_count_nvml": device_count,
    }
    | {
        name: _utilization(name)
        for name in (
            "utilization", "memory_usage", "temperature", "power_draw", "clock_rate",
            "list_gpu_processes", "device_memory_used",
        )
    }
}  # fmt: skip
