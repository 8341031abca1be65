"""Storages that change their size in place, shown by whoever shows them."""

import torch

from jgpu.device import current
from jgpu.device.geometry import intern
from jgpu.device.tensor import BufferHandle, DeviceTensor, device, wrap

__all__ = ["resize_storage"]


def resize_storage(storage: BufferHandle, nbytes: int) -> None:
    """Make a storage `nbytes` long, in place: whoever shows it sees the same bytes as before."""
    kept = intern(torch.uint8, (min(nbytes, storage.nbytes),), (1,))
    with torch.no_grad(), torch.inference_mode(False):
        made = torch.empty(nbytes, dtype=torch.uint8, device=device())
        assert isinstance(made, DeviceTensor)
        if kept.nbytes:
            wrap(made._b, kept).copy_(wrap(storage, kept))
    current.session.exchange(storage, made._b)
