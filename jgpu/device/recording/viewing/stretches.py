"""`x[i]` and `x[i:j]`: views that begin somewhere along a dimension.

Torch is asked once a geometry, dimension and length what such a view looks like; where it begins
is computed here. So a row or a batch of a dataset costs one look-up, however many there are.

Invariant: what is shown here is what torch's own view kernels show, to the last stride.
"""

from typing import Any

import torch

from jgpu.device.geometry import InternedGeometry, geometry_of
from jgpu.device.recording.ops import OpInfo
from jgpu.device.tensor import DeviceTensor, wrap

__all__ = ["STRETCHES", "known"]

#: what a stretch looks like, by op, geometry, dimension and, for slices, length
known: dict[Any, InternedGeometry] = {}
_MAX_KNOWN = 1 << 16


def _row(info: OpInfo, source: DeviceTensor, args: tuple[Any, ...]) -> DeviceTensor | None:
    """`select`; None where torch is to say what it makes of such arguments."""
    _, dim, at = args
    shown = source._g
    key = info, shown, dim
    geometry = known.get(key)
    if geometry is None:
        geometry = _look(info, key, source, args)
        if geometry is None:
            return None
    size = shown.shape[dim]
    if at < 0:
        at += size
    if not 0 <= at < size:
        return None
    return wrap(source._b, geometry, source._o + at * shown.stride[dim])


def _slice(info: OpInfo, source: DeviceTensor, args: tuple[Any, ...]) -> DeviceTensor | None:
    """`slice` in steps of one; None where torch is to say what it makes of such arguments."""
    if len(args) != 4:
        return None
    _, dim, start, end = args
    shown = source._g
    if type(start) is not int or type(end) is not int or not 0 <= dim < len(shown.shape):
        return None
    size = shown.shape[dim]
    if start < 0:
        start += size
    start = 0 if start < 0 else min(start, size)
    if end < 0:
        end += size
    end = start if end < start else min(end, size)
    key = info, shown, dim, end - start
    geometry = known.get(key)
    if geometry is None:
        geometry = _look(info, key, source, args)
        if geometry is None:
            return None
    return wrap(source._b, geometry, source._o + start * shown.stride[dim])


def _look(
    info: OpInfo, key: Any, source: DeviceTensor, args: tuple[Any, ...]
) -> InternedGeometry | None:
    """Ask torch's own kernel, and remember; None where it raises, which is for others to tell."""
    try:
        with torch._C._DisableTorchDispatch():
            made = info.call(source._g.meta(), *args[1:])
    except (IndexError, RuntimeError):
        return None
    if len(known) >= _MAX_KNOWN:
        known.clear()
    geometry = known[key] = geometry_of(made)
    return geometry


#: what carries out such a view, or returns None, by the op's name
STRETCHES: dict[str, Any] = {"aten::select.int": _row, "aten::slice.Tensor": _slice}
