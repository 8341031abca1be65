"""The kinds of device that an executor can have."""

from jgpu.broker.executor.devices.base import Device
from jgpu.broker.flightpage import FlightPage
from jgpu.broker.settings import ExecutorSettings
from jgpu.errors import ConfigError

__all__ = ["make_device"]


def make_device(settings: ExecutorSettings, page: FlightPage | None = None) -> Device:
    """The device that the settings name, which notes on `page` what its lanes do.

    Raises `ConfigError`, or what torch raises.
    """
    if settings.device == "cpu":
        from jgpu.broker.executor.devices.cpu import CpuDevice

        return CpuDevice(settings, page)
    if settings.device == "null":
        from jgpu.broker.executor.devices.null import NullDevice

        return NullDevice(settings, page)
    if settings.device == "cuda":
        from jgpu.broker.executor.devices.cuda import CudaDevice

        return CudaDevice(settings, page=page)
    if settings.device == "cuda-on-host":
        from jgpu.broker.executor.devices.cuda import CudaDevice
        from jgpu.broker.executor.devices.onhost.calls import HostCalls

        return CudaDevice(settings, HostCalls(settings.seed), page=page)
    raise ConfigError(f"There is no device of the kind {settings.device!r}.")
