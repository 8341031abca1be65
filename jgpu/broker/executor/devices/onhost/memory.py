"""Device memory on the host, given out as torch's caching allocator gives out a GPU's.

A block belongs to the stream that it was allocated on. Dropped, it goes to that stream's next
allocation at once, whoever may still use it on another one; and it is overwritten, in the order of
its stream, so that such a use reads something else. A new block holds what a neighbour left.

Covers one device's memory; which tensors lie in a block is `shadows`' affair.

Invariant: the bytes of live blocks are no more than the limit.
"""

from dataclasses import dataclass
from typing import Final

import torch

from jgpu.broker.executor.devices.onhost.kernels import unset
from jgpu.broker.executor.devices.onhost.streams import HostStream, HostStreams

__all__ = ["Block", "HostMemory"]

_UNIT: Final = 512


@dataclass(slots=True, eq=False)
class Block:
    """A piece of device memory."""

    #: uint8, on the host; as long as the block was rounded up to
    bytes: torch.Tensor
    home: HostStream

    @property
    def nbytes(self) -> int:
        """Its length."""
        return self.bytes.numel()


class HostMemory:
    """Blocks, in use and kept for the next who asks."""

    def __init__(self, streams: HostStreams, total: int) -> None:
        self._streams = streams
        self.total = total
        #: bytes beyond which an allocation fails
        self.limit = total
        #: bytes of blocks in use, the most that they were since `watch`, and of those kept
        self.used = self.most_used = self.kept = 0
        self._kept: dict[tuple[int, int], list[Block]] = {}

    def allocate(self, nbytes: int, home: HostStream) -> Block:
        """A block for so many bytes; raises `torch.OutOfMemoryError`."""
        size = max(_UNIT, -(-nbytes // _UNIT) * _UNIT)
        with self._streams.lock:
            self._streams.check()
            found = self._kept.get((home.number, size))
            if found:
                block = found.pop()
                self.kept -= size
            else:
                block = Block(self._fresh(size), home)
            self.used += size
            self.most_used = max(self.most_used, self.used)
            return block

    def _fresh(self, size: int) -> torch.Tensor:
        if self.used + self.kept + size > self.limit:
            self.give_back()
        if self.used + size > self.limit:
            raise torch.OutOfMemoryError(
                f"CUDA out of memory. Tried to allocate {size / 2**20:.2f} MiB. GPU 0 has a total "
                f"capacity of {self.limit / 2**20:.2f} MiB of which "
                f"{(self.limit - self.used) / 2**20:.2f} MiB is free."
            )
        return torch.full((size,), unset.STALE, dtype=torch.uint8)

    def free(self, block: Block) -> None:
        """Give a block back to its stream."""
        with self._streams.lock:
            self.used -= block.nbytes
            self.kept += block.nbytes
            self._kept.setdefault((block.home.number, block.nbytes), []).append(block)
            if self._streams.fault is None:
                self._streams.put(block.home, lambda: block.bytes.fill_(unset.STALE))

    def give_back(self) -> None:
        """Free what is kept; waits for all streams, as the driver does."""
        with self._streams.lock:
            self._streams.drain_all()
            self._kept.clear()
            self.kept = 0

    def watch(self) -> int:
        """Begin to look for the most; returns what is used now."""
        self.most_used = self.used
        return self.used
