"""Storages without a stale byte: what no op wrote is zero, never what a neighbour left there.

Allocators give memory back as it was freed. What a kernel leaves of it, between the elements of a
tensor with holes, behind the last one, or where a storage grows, could be read by a program that
lays another geometry over the storage. So it is zeroed here.

Covers storages, not elements that a kernel leaves unset: those are `programs.precautions`'.
"""

import torch

from jgpu.broker.executor.programs.geometry import ViewSpec, geometry_of, intern, is_dense

__all__ = ["clear", "filled", "grow", "has_holes", "is_filled", "settled"]


def whole(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor's storage, all of its bytes."""
    return torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(tensor.untyped_storage())


def clear(tensor: torch.Tensor) -> None:
    """Zero the tensor's whole storage."""
    whole(tensor).zero_()


def grow(base: torch.Tensor, nbytes: int) -> None:
    """Let the tensor's storage have at least so many bytes; those that come on top are zero."""
    storage = base.untyped_storage()
    before = storage.nbytes()
    if before < nbytes:
        storage.resize_(nbytes)
        whole(base)[before:].zero_()


def has_holes(claim: ViewSpec | None) -> bool:
    """Whether a storage of this geometry has bytes of no element; None: nobody knows."""
    return claim is None or claim.offset > 0 or not is_dense(claim.geometry)


def is_filled(tensor: torch.Tensor) -> bool:
    """Whether all bytes of the tensor's storage belong to its elements."""
    return tensor.untyped_storage().nbytes() <= tensor.numel() * tensor.itemsize


def filled(tensor: torch.Tensor) -> torch.Tensor:
    """The same over a storage of its own, of what its geometry needs; holes are zero."""
    return intern(geometry_of(tensor)).restrided(tensor)


def settled(tensor: torch.Tensor | None) -> torch.Tensor | None:
    """What an op returned of sizes that nobody claimed, without bytes of no element."""
    return tensor if tensor is None or is_filled(tensor) else filled(tensor)
