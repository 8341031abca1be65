"""The port of what the pump does itself with a session's buffers while no lane has any of them."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, NoReturn

from jgpu.broker.executor.devices.host import HostPort
from jgpu.broker.executor.programs.buffers import Buffer
from jgpu.broker.flightpage import Record

if TYPE_CHECKING:
    import torch

    from jgpu.broker.executor.devices.base import Device

__all__ = ["IdlePort"]


class IdlePort(HostPort):
    """Drops buffers; moves no bytes, for that takes a lane."""

    def __init__(self, device: "Device") -> None:
        self._device = device
        self.flight = Record.unseen()

    def write(self, target: "torch.Tensor", source: memoryview | bytes) -> NoReturn:
        """Never."""
        raise NotImplementedError

    def read(self, buffer: Buffer, offset: int, target: memoryview) -> NoReturn:
        """Never."""
        raise NotImplementedError

    def use(self, buffers: Iterable[Buffer]) -> None:
        """Nothing is used."""

    def made(self, buffers: Iterable[Buffer]) -> None:
        """Nothing is made."""

    def owns(self, buffers: Iterable[Buffer]) -> bool:
        """Nothing is in flight."""
        return True

    def retire(self, buffers: Iterable[Buffer]) -> None:
        """Nothing is in flight."""
        self._device.discard(buffers)
