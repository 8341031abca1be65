"""Geometry in torch's terms: dtypes by name, byte bounds, and views over a storage.

Geometries come from clients and are never trusted: `required_bytes` says how much storage a view
touches, and whoever makes a view compares that with the storage first.
"""

from typing import Final
from weakref import WeakValueDictionary

import torch

from jgpu.accelerator import loading
from jgpu.errors import ProgramError
from jgpu.wire.program import CONJ, NEG, Geometry

__all__ = [
    "ViewSpec",
    "describe",
    "dtype_of",
    "geometry_of",
    "intern",
    "is_contiguous",
    "is_dense",
    "laid_over",
    "required_bytes",
]

#: Strided, unquantised dtypes that programs may name.
_DTYPES: Final = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in (
        *(torch.float64, torch.float32, torch.float16, torch.bfloat16),
        *(torch.int64, torch.int32, torch.int16, torch.int8, torch.bool),
        *(torch.uint8, torch.uint16, torch.uint32, torch.uint64),
        *(torch.complex128, torch.complex64, torch.complex32),
        *(torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz),
    )
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


def required_bytes(geometry: Geometry) -> int:
    """Bytes of storage from its start that this geometry touches; 0 for an empty tensor."""
    last = geometry.offset
    for size, stride in zip(geometry.shape, geometry.stride, strict=True):
        if size == 0:
            return 0
        last += (size - 1) * stride
    needed = (last + 1) * dtype_of(geometry.dtype).itemsize
    if needed > _MAX_BYTES:
        raise ProgramError(f"A tensor of shape {geometry.shape} is larger than any device.")
    return needed


def is_dense(geometry: Geometry) -> bool:
    """Whether the elements fill one block of storage, each place once, in whatever order."""
    expected = 1
    for stride, size in sorted(zip(geometry.stride, geometry.shape, strict=True)):
        if size == 0:
            return True
        if size > 1:
            if stride != expected:
                return False
            expected *= size
    return True


def is_contiguous(geometry: Geometry) -> bool:
    """Whether the elements lie one behind the other, row by row."""
    expected = 1
    for size, stride in zip(reversed(geometry.shape), reversed(geometry.stride), strict=True):
        if size != 1 and stride != expected:
            return 0 in geometry.shape
        expected *= size
    return True


def geometry_of(tensor: torch.Tensor) -> Geometry:
    """The true geometry of a strided tensor."""
    bits = (CONJ if tensor.is_conj() else 0) | (NEG if tensor.is_neg() else 0)
    return Geometry(
        _NAMES.get(tensor.dtype, str(tensor.dtype).removeprefix("torch.")),
        tuple(tensor.shape),
        tuple(tensor.stride()),
        int(tensor.storage_offset()),
        bits,
    )


def describe(geometry: Geometry | None) -> str:
    """A geometry for a sentence."""
    if geometry is None:
        return "nothing"
    return f"{geometry.dtype} of shape {list(geometry.shape)} and stride {list(geometry.stride)}"


def laid_over(
    base: torch.Tensor,
    dtype: torch.dtype,
    shape: tuple[int, ...],
    stride: tuple[int, ...],
    offset: int,
) -> torch.Tensor:
    """A tensor over `base`'s storage; the plain form, by which the accelerator's is measured."""
    if base.dtype is dtype and not base.is_conj() and not base.is_neg():
        return torch.as_strided(base, shape, stride, offset)
    made = torch.empty(0, dtype=dtype, device=base.device)
    return made.set_(base.untyped_storage(), offset, shape, stride)


_laid_over: Final = getattr(loading.load(), "laid_over", laid_over)


class ViewSpec:
    """A geometry, ready to be laid over a storage; hashed by identity, so `intern` it."""

    __slots__ = ("__weakref__", "bits", "dtype", "geometry", "nbytes", "offset", "shape", "stride")

    def __init__(self, geometry: Geometry) -> None:
        self.geometry = geometry
        self.dtype = dtype_of(geometry.dtype)
        self.shape = geometry.shape
        self.stride = geometry.stride
        self.offset = geometry.offset
        self.bits = geometry.bits
        #: storage that the view touches, from the storage's start
        self.nbytes = required_bytes(geometry)

    def over(self, base: torch.Tensor, offset: int | None = None) -> torch.Tensor:
        """A new tensor over `base`'s storage; `offset`, in elements, replaces the geometry's."""
        at = self.offset if offset is None else offset
        if not self.bits:
            return _laid_over(base, self.dtype, self.shape, self.stride, at)
        made = torch.empty(0, dtype=self.dtype, device=base.device)
        made.set_(base.untyped_storage(), at, self.shape, self.stride)
        if self.bits & CONJ:
            torch._C._set_conj(made, True)
        if self.bits & NEG:
            torch._C._set_neg(made, True)
        return made

    @property
    def in_rows(self) -> bool:
        """Whether its strides are those of a new tensor of its shape, to the last of them."""
        strides, step = [], 1
        for size in reversed(self.shape):
            strides.append(step)
            step *= max(size, 1)
        return tuple(reversed(strides)) == self.stride and not self.bits

    def bytes_at(self, offset: int) -> int:
        """What `nbytes` would be at another offset (in elements)."""
        return self.nbytes + (offset - self.offset) * self.dtype.itemsize if self.nbytes else 0

    def fits(self, tensor: torch.Tensor) -> bool:
        """Whether the tensor has this geometry (the offset apart from an empty one's)."""
        return (
            tensor.dtype is self.dtype
            and tensor.shape == self.shape
            and tensor.stride() == self.stride
            and (tensor.storage_offset() == self.offset or not tensor.numel())
            and tensor.is_conj() == bool(self.bits & CONJ)
            and tensor.is_neg() == bool(self.bits & NEG)
        )

    def restrided(self, tensor: torch.Tensor) -> torch.Tensor:
        """A copy of the tensor that lies as this geometry says; gaps are zero."""
        base = torch.zeros(self.nbytes, dtype=torch.uint8, device=tensor.device)
        return self.over(base).copy_(tensor)


_interned: WeakValueDictionary[Geometry, ViewSpec] = WeakValueDictionary()


def intern(geometry: Geometry) -> ViewSpec:
    """The one `ViewSpec` of this geometry in this process."""
    found = _interned.get(geometry)
    if found is None:
        if geometry.bits & CONJ and not dtype_of(geometry.dtype).is_complex:
            raise ProgramError(f"A tensor of type {geometry.dtype} has no conjugate view.")
        found = _interned.setdefault(geometry, ViewSpec(geometry))
    return found
