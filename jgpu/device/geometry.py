"""Interned geometries: how a tensor lies over its buffer, without the offset.

Two tensors of equal dtype, sizes, strides and lazy bits share one `Geometry` object, so that a
dispatch key compares identities and a program's table is built by look-up. The storage offset is
kept beside it on the tensor: batches sliced from one dataset differ in nothing else.
"""

from typing import Any

import torch

from jgpu.wire import program as wire
from jgpu.wire.formulas.shapes import contiguous_stride
from jgpu.wire.limits import MAX_DIMS

__all__ = [
    "InternedGeometry",
    "contiguous_stride",
    "from_wire",
    "geometry_of",
    "has_idle_steps",
    "intern",
    "is_dense",
]

Sizes = tuple[int, ...]


class InternedGeometry:
    """dtype, sizes and strides in elements, conj/neg bits; equal ones are the same object."""

    __slots__ = (
        "_meta",
        "bits",
        "contiguous",
        "dtype",
        "itemsize",
        "native",
        "nbytes",
        "numel",
        "shape",
        "stride",
        "wire",
        "wrapper",
    )

    def __init__(self, dtype: torch.dtype, shape: Sizes, stride: Sizes, bits: int) -> None:
        self.dtype = dtype
        self.shape = shape
        self.stride = stride
        self.bits = bits
        self.itemsize = dtype.itemsize
        self.numel = 1
        for size in shape:
            self.numel *= size
        #: bytes from the first element to the end of the last one
        self.nbytes = extent(shape, stride) * self.itemsize
        #: row-major without holes (what `is_contiguous` says)
        self.contiguous = self.numel == 0 or all(
            size == 1 or have == want
            for size, have, want in zip(shape, stride, contiguous_stride(shape), strict=True)
        )
        self.wire = wire.Geometry(str(dtype)[6:], shape, stride, 0, bits)
        #: what `tensor.make_wrapper` is called with, once a tensor of it was made
        self.wrapper: tuple[Any, ...] | None = None
        self._meta: torch.Tensor | None = None
        #: the same for the accelerator, once it made a tensor of it
        self.native: Any = None

    def __repr__(self) -> str:
        return f"Geometry({self.wire!r})"

    def meta(self) -> torch.Tensor:
        """A meta tensor of this geometry, shared; never pass it where it is mutated."""
        if self._meta is None:
            self._meta = self.fresh_meta()
        return self._meta

    def fresh_meta(self) -> torch.Tensor:
        """A meta tensor of this geometry that may be resized or transposed in place."""
        made = torch.empty_strided(self.shape, self.stride, dtype=self.dtype, device="meta")
        if self.bits & wire.CONJ:
            torch._C._set_conj(made, True)
        if self.bits & wire.NEG:
            torch._C._set_neg(made, True)
        return made


def extent(shape: Sizes, stride: Sizes) -> int:
    """Elements between the first and the end of the last one."""
    last = 1
    for size, step in zip(shape, stride, strict=True):
        if size == 0:
            return 0
        last += (size - 1) * step
    return last


def is_dense(geometry: InternedGeometry) -> bool:
    """Non-overlapping and dense: the elements fill their extent exactly, in some order."""
    return geometry.nbytes == geometry.numel * geometry.itemsize and _no_overlap(geometry)


def _no_overlap(geometry: InternedGeometry) -> bool:
    if geometry.contiguous:
        return True
    expected = 1
    pairs = zip(geometry.stride, geometry.shape, strict=True)
    for stride, size in sorted(pair for pair in pairs if pair[1] != 1):
        if stride != expected:
            return False
        expected *= size
    return True


def has_idle_steps(geometry: InternedGeometry) -> bool:
    """Whether a dimension with one element has a stride of its own, which leads nowhere."""
    if 1 not in geometry.shape:
        return False
    steps = zip(geometry.stride, contiguous_stride(geometry.shape), strict=True)
    pairs = zip(geometry.shape, steps, strict=True)
    return any(size == 1 and have != want for size, (have, want) in pairs)


_interned: dict[tuple[Any, ...], InternedGeometry] = {}


def intern(dtype: torch.dtype, shape: Sizes, stride: Sizes, bits: int = 0) -> InternedGeometry:
    """The one `Geometry` of these properties."""
    key = (dtype, shape, stride, bits)
    found = _interned.get(key)
    if found is None:
        if len(shape) > MAX_DIMS:
            raise RuntimeError(
                f"Received a tensor with {len(shape)} dimensions, but only tensors with up to "
                f"{MAX_DIMS} dims are supported!"
            )
        if len(_interned) > 1 << 16:
            _interned.clear()  # identities may be made anew: equal tensors then miss a cache once
        found = _interned[key] = InternedGeometry(dtype, tuple(shape), tuple(stride), bits)
    return found


def geometry_of(tensor: torch.Tensor) -> InternedGeometry:
    """The geometry of any strided torch tensor."""
    bits = (wire.CONJ if tensor.is_conj() else 0) | (wire.NEG if tensor.is_neg() else 0)
    return intern(tensor.dtype, tuple(tensor.shape), tensor.stride(), bits)


def from_wire(geometry: wire.Geometry) -> InternedGeometry:
    """The geometry that an executor reported (its offset is always 0 for a fresh tensor)."""
    dtype = getattr(torch, geometry.dtype)
    return intern(dtype, geometry.shape, geometry.stride, geometry.bits)
