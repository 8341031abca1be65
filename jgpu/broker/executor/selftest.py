"""A small program that a device must get right before it may have sessions.

It goes the way that sessions' works go: bytes in, a product and a sum, a convolution, bytes out, in
a lane. On a GPU it is done in each, so that what the libraries make at their first use on a stream
(handles, workspaces) is there before a notebook's first op.
"""

from struct import pack, unpack
from time import monotonic, sleep
from typing import Final

import torch

from jgpu.broker.executor.devices.base import Device, Port
from jgpu.broker.executor.programs import Buffer
from jgpu.errors import ConfigError

__all__ = ["self_test"]

_TIMEOUT_S: Final = 60.0
_VALUES: Final = (1.0, 2.0, 3.0, 4.0)
#: the matrix (1 2; 3 4) times itself, plus itself; and the sum of its squares
_EXPECTED: Final = (8.0, 12.0, 18.0, 26.0, 30.0)


class _Job:
    """The test as a job."""

    measured_s = 0.0
    over_ns = 0

    def __init__(self, device: torch.device) -> None:
        self.error: BaseException | None = None
        self.result = bytearray(20)
        self._device = device

    def known_s(self) -> float:
        """Unknown."""
        return 0.0

    def launch(self, port: Port) -> None:
        """Bytes in, ops, bytes out."""
        buffer = Buffer.allocate(0, 16, self._device)
        port.made([buffer])
        port.write(buffer.bytes(), pack("4f", *_VALUES))
        matrix = buffer.bytes().view(torch.float32).view(2, 2)
        image = matrix.view(1, 1, 2, 2)
        result = Buffer(1, torch.addmm(matrix, matrix, matrix))
        squares = Buffer(2, torch.conv2d(image, image))
        port.made([result, squares])
        port.read(result, 0, memoryview(self.result)[:16])
        port.read(squares, 0, memoryview(self.result)[16:])
        port.retire([buffer, result, squares])

    def finish(self) -> None:
        """Nobody waits for a reply."""

    def broke(self, error: BaseException) -> None:
        """Keep what went wrong."""
        self.error = error


def self_test(device: Device, lanes: int = 1, *, computes: bool = True) -> None:
    """Try so many lanes; raises `ConfigError`, or what the device raised, unless they work.

    The sum must be right where the device `computes` at all.
    """
    jobs = [_Job(device.torch_device) for _ in range(lanes)]
    for lane, job in enumerate(jobs):
        device.open_lane(lane)
        device.submit(lane, [job])
    deadline, over = monotonic() + _TIMEOUT_S, 0
    while over < lanes:
        if monotonic() > deadline:
            raise ConfigError(f"{device.facts.name} did not finish a 2 by 2 product in a minute.")
        sleep(0.0005)
        over += len(device.completions())
    for lane, job in enumerate(jobs):
        device.close_lane(lane)
        if job.error is not None:
            raise job.error
        found = unpack("5f", job.result)
        if found != _EXPECTED and computes:
            raise ConfigError(f"{device.facts.name} computes {found} where {_EXPECTED} is right.")
