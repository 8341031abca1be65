"""A few numbers in the host's memory, by one call where the accelerator was built.

Whoever waits for a number waits for this. `bytes_of` and `tensor_of` are the plain forms, by which
the library's are measured.
"""

from collections.abc import Callable
from ctypes import memmove, string_at
from typing import Final, TypeVar

import torch

from jgpu.accelerator.loading import load

__all__ = ["bytes_of", "quickest", "tensor_of"]

_HOST: Final = torch.device("cpu")
_Form = TypeVar("_Form", bound=Callable[..., object])


def bytes_of(tensor: torch.Tensor, most: int) -> bytes | None:
    """All bytes of a tensor's storage; None if they are not the host's, or more than `most`."""
    storage = tensor.untyped_storage()
    nbytes = storage.nbytes()
    if nbytes > most or storage.device != _HOST:
        return None
    return string_at(storage.data_ptr(), nbytes)


def tensor_of(data: bytes) -> torch.Tensor:
    """A tensor on the host that holds these bytes; RuntimeError or MemoryError where that fails."""
    made = torch.empty(len(data), dtype=torch.uint8, device=_HOST)
    memmove(made.data_ptr(), data, len(data))
    return made


def quickest(plain: _Form) -> _Form:
    """The library's form of it, or the plain one."""
    found: _Form = getattr(load(), plain.__name__, plain)
    return found
