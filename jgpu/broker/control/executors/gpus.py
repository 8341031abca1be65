"""Is there a GPU, which one is it, and does another broker on this host have it?

The claim is a listening socket in the abstract namespace, named after the GPU: the kernel lets one
process have it, forgets it when that process ends, asks for no directory that all users could
write to, and tells whose it is. Brokers in containers with a network namespace of their own do not
see each other's claims; give a GPU to one container only.
"""

import contextlib
import errno
import itertools
import os
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from jgpu.broker.control.listening.identity import login_name, peer_of
from jgpu.errors import ConfigError

__all__ = [
    "GpuClaim",
    "claim_gpu",
    "gpu_is_plugged_in",
    "gpu_seems_present",
    "gpu_uuid",
    "visible_as",
]

#: devices on the bus, the vendor's number, and how the class of a display adapter begins
_PCI: Final = Path("/sys/bus/pci/devices")
_NVIDIA: Final = "0x10de"
_DISPLAY: Final = "0x03"
#: of a GPU whose UUID nobody tells
_NUMBERED: Final = "GPU-number-"


def gpu_seems_present(environ: Mapping[str, str] = os.environ) -> bool:
    """Whether it is worth trying: the driver lists a GPU, or its device file is there."""
    if "CUDA_VISIBLE_DEVICES" in environ and not _visible(environ):
        return False
    return bool(_nvml_uuids()) or Path("/dev/nvidia0").exists() or Path("/dev/dxg").exists()


def gpu_is_plugged_in(bus: Path = _PCI) -> bool:
    """Whether a display adapter of NVIDIA's is on the bus, whatever drives it."""
    for device in bus.glob("*"):
        try:
            is_display = (device / "class").read_text().startswith(_DISPLAY)
            if is_display and (device / "vendor").read_text().strip() == _NVIDIA:
                return True
        except OSError:
            continue
    return False


def visible_as(index: int, environ: Mapping[str, str] = os.environ) -> str:
    """What `CUDA_VISIBLE_DEVICES` has to be for a process that sees only the GPU of that index."""
    name = gpu_uuid(index, environ)
    return name.removeprefix(_NUMBERED) if name.startswith(_NUMBERED) else name


def gpu_uuid(index: int, environ: Mapping[str, str] = os.environ) -> str:
    """A name for the GPU that CUDA will call `index`, the same in all processes of the host."""
    name = str(index)
    if "CUDA_VISIBLE_DEVICES" in environ:
        visible = _visible(environ)
        if index >= len(visible):
            raise ConfigError(
                f"GPU {index} is not among those that CUDA_VISIBLE_DEVICES names "
                f"({environ['CUDA_VISIBLE_DEVICES']!r})."
            )
        name = visible[index]
    if not name.isdecimal():
        return name
    uuids = _nvml_uuids()
    return uuids[int(name)] if int(name) < len(uuids) else f"{_NUMBERED}{name}"


def _visible(environ: Mapping[str, str]) -> list[str]:
    """The entries of CUDA_VISIBLE_DEVICES; CUDA stops at the first that is negative or empty."""
    entries = (entry.strip() for entry in environ["CUDA_VISIBLE_DEVICES"].split(","))
    return list(itertools.takewhile(lambda entry: entry and not entry.startswith("-"), entries))


def _nvml_uuids() -> list[str]:
    """UUIDs of all GPUs in the driver's order; empty where driver or its library is missing.

    A GPU that is parted (MIG) stands for its instances, which are what a process can have.
    """
    try:
        import pynvml
    except ImportError:
        return []
    with contextlib.suppress(pynvml.NVMLError):
        pynvml.nvmlInit()
        try:
            handles = map(pynvml.nvmlDeviceGetHandleByIndex, range(pynvml.nvmlDeviceGetCount()))
            return [
                pynvml.nvmlDeviceGetUUID(part)
                for handle in handles
                for part in _instances(pynvml, handle) or [handle]
            ]
        finally:
            pynvml.nvmlShutdown()
    return []


def _instances(pynvml: Any, handle: Any) -> list[Any]:
    """Handles of the instances that a GPU is parted into; none where it is whole."""
    found = []
    with contextlib.suppress(pynvml.NVMLError):  # most GPUs cannot be parted
        if pynvml.nvmlDeviceGetMigMode(handle)[0]:
            for place in range(pynvml.nvmlDeviceGetMaxMigDeviceCount(handle)):
                with contextlib.suppress(pynvml.NVMLError):  # places may be empty
                    found.append(pynvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, place))
    return found


class GpuClaim:
    """This process has the GPU until `release`."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._address = f"\0jgpu-gpu-{name}"
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._socket.bind(self._address)
            self._socket.listen(1)
        except OSError as error:
            self._socket.close()
            if error.errno != errno.EADDRINUSE:
                raise
            raise ConfigError(
                f"The GPU {name} is taken by another broker ({self._owner()}). Stop that one, or "
                "connect to it by JGPU_ADDRESS; two brokers cannot share a GPU."
            ) from None

    def release(self) -> None:
        """Let others have it."""
        self._socket.close()

    def _owner(self) -> str:
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
                probe.settimeout(0.2)
                probe.connect(self._address)
                owner = peer_of(probe)
        except OSError:
            return "which did not say who it is"
        return f"pid {owner.pid} of user {login_name(owner.uid)}"


def claim_gpu(index: int) -> GpuClaim:
    """Claim GPU `index`; raises `ConfigError` naming the owner if another broker has it."""
    return GpuClaim(gpu_uuid(index))
