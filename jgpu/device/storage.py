"""The storage of a device tensor as Python sees it: size, place, identity, no bytes."""

import weakref
from typing import Any

import torch

from jgpu.device.geometry import intern
from jgpu.device.tensor import CUDA, Buffer, wrap
from jgpu.device.tracebacks import unseen_methods

__all__ = ["Storage", "storage_of"]


@unseen_methods
class Storage:
    """Stands for one buffer; two tensors over one buffer give the same object."""

    def __init__(self, buffer: Buffer) -> None:
        self._b = buffer

    is_cuda = True
    is_sparse = False
    is_sparse_csr = False
    is_hpu = False

    @property
    def device(self) -> torch.device:
        """cuda:0"""
        return CUDA

    @property
    def _cdata(self) -> int:
        return self._b.address

    def data_ptr(self) -> int:
        """A unique fake address."""
        return self._b.address if self._b.nbytes else 0

    def nbytes(self) -> int:
        """Bytes of the buffer."""
        return self._b.nbytes

    size = nbytes
    __len__ = nbytes

    def element_size(self) -> int:
        """1: untyped storages count bytes."""
        return 1

    def get_device(self) -> int:
        """0"""
        return 0

    def is_pinned(self, device: Any = None) -> bool:
        """Device memory is never pinned."""
        return False

    def is_shared(self) -> bool:
        """As torch says of CUDA storages."""
        return True

    def resizable(self) -> bool:
        """Whether `resize_` may be called."""
        return True

    def resize_(self, size: int) -> "Storage":
        """Make the buffer `size` bytes; used by frameworks that free activations by hand."""
        from jgpu.device import copies

        if size != self._b.nbytes:
            copies.resize_storage(self._b, size)
        return self

    def cpu(self) -> torch.UntypedStorage:
        """The bytes in a host storage; waits."""
        from jgpu.device import copies

        if not self._b.nbytes:
            return torch.UntypedStorage(0)
        whole = wrap(self._b, intern(torch.uint8, (self._b.nbytes,), (1,)))
        return copies.download(whole).untyped_storage()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Storage) and other._b is self._b

    def __hash__(self) -> int:
        return hash(self._b)


_proxies: weakref.WeakValueDictionary[Buffer, Storage] = weakref.WeakValueDictionary()


def storage_of(buffer: Buffer) -> Storage:
    """The one storage object of a buffer, while anybody holds it."""
    found = _proxies.get(buffer)
    if found is None:
        found = _proxies[buffer] = Storage(buffer)
    return found
