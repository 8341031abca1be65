"""Tensors of the device as the host holds them: a geometry over a storage without memory.

A shadow is a meta tensor. Its storage represents a block of device memory, which is freed with the
storage; views, `set_` and similar ops are torch's. A task on a stream refers to blocks and
geometries only, so it keeps nothing alive that the host drops meanwhile.

Invariant: a storage has one block at a time, of at least its bytes.
"""

import weakref
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._pytree import tree_map

from jgpu.broker.executor.devices.onhost.memory import Block, HostMemory
from jgpu.broker.executor.devices.onhost.streams import HostStream

__all__ = ["Seen", "Shadows", "is_shadow"]


def is_shadow(leaf: object) -> bool:
    """Whether an argument is a tensor of the device."""
    return isinstance(leaf, torch.Tensor) and leaf.is_meta


@dataclass(frozen=True, slots=True)
class Seen:
    """A geometry over a block, as it is at one moment."""

    block: Block
    dtype: torch.dtype
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    conj: bool
    neg: bool
    #: bytes of its storage; the block may be longer
    held: int

    @property
    def nbytes(self) -> int:
        """Bytes of the block, from its beginning, that the geometry spans."""
        if 0 in self.shape:
            return 0
        last = sum((size - 1) * step for size, step in zip(self.shape, self.stride, strict=True))
        return int(self.offset + last + 1) * self.dtype.itemsize

    def tensor(self) -> torch.Tensor:
        """The tensor in host memory."""
        return self.over(self.block.bytes)

    def over(self, storage: torch.Tensor) -> torch.Tensor:
        """This geometry over a tensor of bytes."""
        made = torch.empty(0, dtype=self.dtype, device=storage.device)
        made.set_(storage.untyped_storage(), self.offset, self.shape, self.stride)
        if self.conj:
            torch._C._set_conj(made, True)
        if self.neg:
            torch._C._set_neg(made, True)
        return made


class Shadows:
    """Return the block of a storage."""

    def __init__(self, memory: HostMemory) -> None:
        self._memory = memory
        #: by the storage's address
        self._blocks: dict[int, Block] = {}

    def __len__(self) -> int:
        return len(self._blocks)

    def knows(self, tensor: torch.Tensor) -> bool:
        """Whether the tensor's storage has a block of its size."""
        storage = tensor.untyped_storage()
        found = self._blocks.get(storage._cdata)
        return found is not None and found.nbytes >= storage.nbytes()

    def provide(self, tensor: torch.Tensor, stream: HostStream) -> tuple[Block, Block] | None:
        """Give the tensor's storage a block, or a larger one; returns (old, new) of the latter."""
        storage = tensor.untyped_storage()
        key, nbytes = storage._cdata, storage.nbytes()
        old = self._blocks.get(key)
        if old is not None and old.nbytes >= nbytes:
            return None
        new = self._memory.allocate(nbytes, stream)
        self._blocks[key] = new
        if old is not None:
            return old, new
        weakref.finalize(storage, self._drop, key).atexit = False
        return None

    def _drop(self, key: int) -> None:
        self._memory.free(self._blocks.pop(key))

    def release(self, block: Block) -> None:
        """Give back a block that a larger one has replaced."""
        self._memory.free(block)

    def seen(self, tensor: torch.Tensor) -> Seen:
        """The tensor as it is now; raises RuntimeError where nothing ever made its storage."""
        block = self._blocks.get(tensor.untyped_storage()._cdata)
        if block is None:
            raise RuntimeError("A tensor of the device was made outside of a launch.")
        return Seen(
            block,
            tensor.dtype,
            tuple(tensor.shape),
            tuple(tensor.stride()),
            int(tensor.storage_offset()),
            tensor.is_conj(),
            tensor.is_neg(),
            tensor.untyped_storage().nbytes(),
        )

    def all_seen(self, tree: Any) -> Any:
        """Arguments with every shadow as it is now."""
        return tree_map(lambda leaf: self.seen(leaf) if is_shadow(leaf) else leaf, tree)
