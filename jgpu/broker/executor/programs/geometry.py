"""Geometry in torch's terms: dtypes by name, byte bounds, and views over a storage.

Geometries come from clients and are never trusted: `required_bytes` says how much storage a view
touches, and whoever makes a view compares that with the storage first.
"""

from typing import Final

import torch

from jgpu.errors import ProgramError
from jgpu.wire.program import CONJ, NEG, Geometry

__all__ = ["ViewSpec", "describe", "dtype_of", "geometry_of", "required_bytes"]

#: Strided, unquantised dtypes that programs may name.
_DTYPES: Final = {
    name: getattr(torch, name)
    for name in (
        "float32 float64 float16 bfloat16 int64 int32 int16 int8 uint8 uint16 uint32 uint64 bool "
        "complex64 complex128 complex32 float8_e4m3fn float8_e5m2 float8_e4m3fnuz float8_e5m2fnuz"
    ).split()
    if hasattr(torch, name)
}
_NAMES: Final = {dtype: name for name, dtype in _DTYPES.items()}
#: Past this no storage can be; keeps the arithmetic of torch away from its overflow.
_MAX_BYTES: Final = 1 << 48


def dtype_of(name: str) -> torch.dtype:
    """The dtype of that name; raises `ProgramError` for any that programs may not use."""
    dtype = _DTYPES.get(name)
    if dtype is None:
        raise ProgramError(f"Programs cannot use tensors of type {name!r}.")
    return dtype


def required_bytes(geometry: Geometry, offset: int | None = None) -> int:
    """Bytes of storage from its start that this geometry touches; 0 for an empty tensor."""
    first = geometry.offset if offset is None else offset
    last = first
    for size, stride in zip(geometry.shape, geometry.stride, strict=True):
        if size == 0:
            return 0
        last += (size - 1) * stride
    needed = (last + 1) * dtype_of(geometry.dtype).itemsize
    if needed > _MAX_BYTES:
        raise ProgramError(f"A tensor of shape {geometry.shape} is larger than any device.")
    return needed


def geometry_of(tensor: torch.Tensor) -> Geometry:
    """The true geometry of a strided tensor."""
    bits = (CONJ if tensor.is_conj() else 0) | (NEG if tensor.is_neg() else 0)
    return Geometry(
        _NAMES.get(tensor.dtype, str(tensor.dtype).removeprefix("torch.")),
        tuple(tensor.shape),
        tuple(tensor.stride()),
        tensor.storage_offset(),
        bits,
    )


def describe(geometry: Geometry | None) -> str:
    """A geometry for a sentence."""
    if geometry is None:
        return "nothing"
    return f"{geometry.dtype} of shape {list(geometry.shape)} and stride {list(geometry.stride)}"


class ViewSpec:
    """A checked geometry, ready to be laid over a storage; hashed by identity, so intern it."""

    __slots__ = ("bits", "dtype", "geometry", "offset", "shape", "stride")

    def __init__(self, geometry: Geometry) -> None:
        self.geometry = geometry
        self.dtype = dtype_of(geometry.dtype)
        self.shape = geometry.shape
        self.stride = geometry.stride
        self.offset = geometry.offset
        self.bits = geometry.bits

    def over(self, base: torch.Tensor, offset: int | None = None) -> torch.Tensor:
        """A new tensor over `base`'s storage; `offset`, in elements, replaces the geometry's."""
        at = self.offset if offset is None else offset
        if base.dtype is self.dtype and not self.bits and not base.is_conj() and not base.is_neg():
            return torch.as_strided(base, self.shape, self.stride, at)
        made = torch.empty(0, dtype=self.dtype, device=base.device)
        made.set_(base.untyped_storage(), at, self.shape, self.stride)  # type: ignore[call-overload]
        if self.bits & CONJ:
            torch._C._set_conj(made, True)
        if self.bits & NEG:
            torch._C._set_neg(made, True)
        return made
