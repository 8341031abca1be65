"""What torch refuses of sizes, strides and offsets over a storage, in its own words."""

from typing import Any

from jgpu.device.geometry import InternedGeometry
from jgpu.device.tensor import BufferHandle

__all__ = ["check_bounds", "check_extent", "check_offset_number"]


def check_extent(size: Any, stride: Any) -> None:
    """Raise where a tensor would lie before its own beginning."""
    backwards = 0 not in size and any(n > 1 and k < 0 for n, k in zip(size, stride, strict=True))
    if backwards or min(size, default=0) < 0:
        raise RuntimeError(
            f"Storage size calculation overflowed with sizes={list(size)} and "
            f"strides={list(stride)}"
        )


def check_offset_number(offset: int) -> None:
    """Raise where a tensor would begin before its storage does."""
    if offset < 0:
        raise RuntimeError(f"Tensor: invalid storage offset {offset}")


def check_bounds(buffer: BufferHandle, geometry: InternedGeometry, offset: int) -> None:
    """Raise where a geometry would end after the storage does."""
    needed = geometry.nbytes + (offset * geometry.itemsize if geometry.numel else 0)
    if needed > buffer.nbytes:
        raise RuntimeError(
            f"setStorage: sizes {list(geometry.shape)}, strides {list(geometry.stride)}, storage "
            f"offset {offset}, and itemsize {geometry.itemsize} requiring a storage size of "
            f"{needed} are out of bounds for storage of size {buffer.nbytes}"
        )
