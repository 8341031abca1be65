"""An executor with less memory than it says: large allocations fail until others make room.

Run as `python -m jgpu.broker.executor` is. Each allocation of `LARGE` bytes or more takes `ROOM`
bytes of what sessions gave back since the one before, and fails while there are fewer: as torch's
allocator does, or by the words of `JGPU_TEST_SHORT`.
"""

import os
import sys

import torch

from jgpu.broker.executor import process
from jgpu.broker.executor.devices import cpu

LARGE = 4 << 20
ROOM = 3 << 20


class ShortDevice(cpu.CpuDevice):
    """A `cpu` device with injected failures."""

    def __init__(self, settings, page):
        super().__init__(settings, page)
        self.allocate = self._allocate
        self._room = 0

    def _allocate(self, op, nbytes):
        if nbytes < LARGE:
            return
        if self._room < ROOM:
            words = os.environ.get("JGPU_TEST_SHORT")
            if words and op:
                raise RuntimeError(words)
            raise torch.OutOfMemoryError(f"injected: no room for {nbytes} bytes")
        self._room -= ROOM

    def discard(self, buffers):
        found = list(buffers)
        self._room += sum(buffer.nbytes for buffer in found)
        super().discard(found)


if __name__ == "__main__":
    cpu.CpuDevice = ShortDevice
    sys.exit(process.main(sys.argv[1:]))
