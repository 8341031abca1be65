"""The bytes of a few numbers in the host's memory, by one call where the accelerator was built.

Whoever waits for a number waits for this. `bytes_of` is the plain form, by which the library's is
measured.
"""

from collections.abc import Callable
from ctypes import string_at
from typing import Final, TypeAlias

import torch

from jgpu.accelerator.loading import load

__all__ = ["BytesOf", "bytes_of", "quickest"]

_HOST: Final = torch.device("cpu")
BytesOf: TypeAlias = Callable[[torch.Tensor, int], bytes | None]


def bytes_of(tensor: torch.Tensor, most: int) -> bytes | None:
    """All bytes of a tensor's storage; None if they are not the host's, or more than `most`."""
    storage = tensor.untyped_storage()
    nbytes = storage.nbytes()
    if nbytes > most or storage.device != _HOST:
        return None
    return string_at(storage.data_ptr(), nbytes)


def quickest() -> BytesOf:
    """The library's form of it, or the plain one."""
    found: BytesOf = getattr(load(), "bytes_of", bytes_of)
    return found
