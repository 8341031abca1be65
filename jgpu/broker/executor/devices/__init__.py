"""The kinds of device that an executor can have."""

from jgpu.broker.executor.devices.base import Device
from jgpu.broker.settings import ExecutorSettings
from jgpu.errors import ConfigError

__all__ = ["make_device"]


def make_device(settings: ExecutorSettings) -> Device:
    """The device that the settings name; raises `ConfigError` or what torch raises."""
    if settings.device == "cpu":
        from jgpu.broker.executor.devices.cpu import CpuDevice

        return CpuDevice(settings)
    if settings.device == "null":
        from jgpu.broker.executor.devices.null import NullDevice

        return NullDevice(settings)
    if settings.device == "cuda":
        from jgpu.broker.executor.devices.cuda import CudaDevice

        return CudaDevice(settings)
    raise ConfigError(f"There is no device of the kind {settings.device!r}.")
