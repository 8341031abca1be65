"""Views: geometry over the same buffer, no message. Computed by torch's own view kernels on meta.

Also the in-place forms (`t.transpose_()`, `resize_`, `set_`) that change what a tensor object
shows; all of them end in `rebind`.
"""

from typing import Any

import torch

from jgpu.device.geometry import InternedGeometry, contiguous_stride, extent, geometry_of, intern
from jgpu.device.recording.growth import resize_storage
from jgpu.device.recording.ops import OpInfo
from jgpu.device.recording.viewing.bounds import check_bounds, check_extent, check_offset_number
from jgpu.device.recording.viewing.stretches import STRETCHES
from jgpu.device.tensor import BufferHandle, DeviceTensor, device, rebind, wrap
from jgpu.device.tensors.scripted import buffer_behind
from jgpu.wire import program as wire

__all__ = ["HANDLERS", "resize", "set_strided", "view"]

_inference_mode = torch.is_inference_mode_enabled
_resize_host = torch.ops.aten.resize_.default


def view(info: OpInfo, args: tuple[Any, ...], kwargs: dict[str, Any] | None) -> Any:
    """Carry out a view op; returns new wrappers over the first argument's buffer."""
    source = args[0]
    if _inference_mode() and not source.is_inference():
        with torch.inference_mode(False):  # views of a normal tensor are normal tensors there
            return view(info, args, kwargs)
    if kwargs or type(source) is not DeviceTensor:
        return _view_unseen(info, None, source, args, kwargs or {})
    shown, count = source._g, len(args)
    key: Any
    if count == 2:
        value = args[1]
        key = info, shown, tuple(value) if type(value) is list else value
    elif count == 1:
        key = info, shown
    else:
        stretch = STRETCHES.get(info.name)
        if stretch is not None:
            made = stretch(info, source, args)
            if made is not None:
                return made
        key = (info, shown, *[tuple(a) if type(a) is list else a for a in args[1:]])
    try:
        seen = known.get(key)
    except TypeError:  # an argument without a hash
        key = seen = None
    if seen is None:
        return _view_unseen(info, key, source, args, {})
    if type(seen) is list:
        return [_over(source, geometry, offset) for geometry, offset in seen]
    geometry, offset = seen
    if source._o or offset:
        if geometry.itemsize > shown.itemsize:
            _check_offset(info, source, args[1:])
        return _over(source, geometry, offset)
    return wrap(source._b, geometry)


def _view_unseen(
    info: OpInfo, key: Any, source: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    handler = HANDLERS.get(info.name)
    if handler is not None:
        if handler is _detach:
            _remember(key, (source._g, 0))
        return handler(*args, **kwargs)
    if type(source) is not DeviceTensor:
        return NotImplemented
    if info.inplace_view:
        return _in_place(info, source, args[1:], kwargs)
    made = _on_meta(info, source._g.meta(), args[1:], kwargs)
    several = isinstance(made, list | tuple)
    shown = [(geometry_of(m), m.storage_offset()) for m in (made if several else (made,))]
    _remember(key, shown if several else shown[0])
    if several:
        return [_over(source, geometry, offset) for geometry, offset in shown]
    if shown[0][0].itemsize > source._g.itemsize:
        _check_offset(info, source, args[1:], kwargs)
    return _over(source, *shown[0])


def _check_offset(info: OpInfo, source: DeviceTensor, rest: Any, kwargs: Any = None) -> None:
    """Raise as torch does where a tensor does not begin at one of the larger elements."""
    g = source._g
    if source._o:
        base = torch.empty(source._o + extent(g.shape, g.stride), dtype=g.dtype, device="meta")
        _on_meta(info, base.as_strided(g.shape, g.stride, source._o), rest, kwargs or {})


#: what a view op shows of a geometry, or a list of it: by op, geometry and arguments
known: dict[Any, Any] = {}
_MAX_KNOWN = 1 << 16


def _remember(key: Any, shown: Any) -> None:
    if len(known) >= _MAX_KNOWN:
        known.clear()
    if key is not None:
        known[key] = shown


def _on_meta(info: OpInfo, meta: torch.Tensor, rest: tuple[Any, ...], kwargs: Any) -> Any:
    with torch._C._DisableTorchDispatch():
        try:
            return info.call(meta, *rest, **kwargs)
        except AssertionError as error:  # a check of a kernel in Python; torch's own are in C++
            refusal = str(error)
        native = torch.zeros((), dtype=meta.dtype, device="cpu").expand(meta.shape)
        info.call(native, *rest, **kwargs)
    raise RuntimeError(refusal)


def _over(source: DeviceTensor, geometry: InternedGeometry, offset: int) -> DeviceTensor:
    """A wrapper showing what a view of the source's meta twin shows."""
    if source._o:
        # A view of another item size counts its offset in its own elements.
        size, own = source._g.itemsize, geometry.itemsize
        offset += source._o if size == own else source._o * size // own
    return wrap(source._b, geometry, offset)


def _detach(source: Any) -> Any:
    if type(source) is not DeviceTensor:
        return NotImplemented
    return wrap(source._b, source._g, source._o)


def _in_place(
    info: OpInfo, source: DeviceTensor, rest: tuple[Any, ...], kwargs: dict[str, Any]
) -> DeviceTensor:
    meta = source._g.fresh_meta()
    _on_meta(info, meta, rest, kwargs)
    rebind(source, source._b, geometry_of(meta), source._o + int(meta.storage_offset()))
    return source


def _as_strided(
    source: DeviceTensor, size: Any, stride: Any, storage_offset: int | None = None
) -> DeviceTensor:
    """Strides over the whole buffer; bounds are the buffer's, as torch checks its storage's."""
    if len(size) != len(stride):
        raise RuntimeError("mismatch in length of strides and shape")
    if min(stride, default=0) < 0:
        raise RuntimeError(
            "as_strided: Negative strides are not supported at the moment, got strides: "
            f"{list(stride)}"
        )
    check_extent(size, stride)
    geometry = intern(source._g.dtype, tuple(size), tuple(stride), source._g.bits)
    offset = source._o if storage_offset is None else storage_offset
    check_bounds(source._b, geometry, offset)
    check_offset_number(offset)
    return wrap(source._b, geometry, offset)


def _as_strided_(
    source: DeviceTensor, size: Any, stride: Any, storage_offset: int | None = None
) -> DeviceTensor:
    made = _as_strided(source, size, stride, storage_offset)
    rebind(source, made._b, made._g, made._o)
    return source


def resize(source: DeviceTensor, size: Any, *, memory_format: Any = None) -> DeviceTensor:
    """`Tensor.resize_`: the storage grows where it is too small, and is shared as before."""
    shape = tuple(size)
    check_extent(shape, contiguous_stride(shape))
    if shape != source._g.shape:  # else its strides stay, whatever they are
        _lay_out(source, shape, contiguous_stride(shape))
    if memory_format is not None:  # torch looks at it when the size has been changed
        if memory_format == torch.preserve_format:
            raise RuntimeError("Unsupported memory formatPreserve")
        stride = torch.empty(shape, device="meta", memory_format=memory_format).stride()
        _lay_out(source, shape, stride)
    return source


def _lay_out(source: DeviceTensor, shape: tuple[int, ...], stride: tuple[int, ...]) -> None:
    geometry = intern(source._g.dtype, shape, stride, source._g.bits)
    _make_room(source._b, geometry, source._o)
    rebind(source, source._b, geometry, source._o)


def _make_room(buffer: BufferHandle, geometry: InternedGeometry, offset: int) -> None:
    """Have the storage grow where it ends before the geometry does."""
    needed = geometry.nbytes + offset * geometry.itemsize if geometry.numel else 0
    if needed > buffer.nbytes:
        resize_storage(buffer, needed)


def _resize_as_(
    source: torch.Tensor, template: torch.Tensor, *, memory_format: Any = None
) -> torch.Tensor:
    if memory_format == torch.preserve_format:
        memory_format = torch._prims_common.suggest_memory_format(template)
    if not isinstance(source, DeviceTensor):
        resized: torch.Tensor = _resize_host(source, template.shape, memory_format=memory_format)
        return resized
    return resize(source, template.shape, memory_format=memory_format)


def _set_tensor(source: DeviceTensor, other: DeviceTensor) -> DeviceTensor:
    shown = other._g
    geometry = intern(shown.dtype, shown.shape, shown.stride, source._g.bits)  # these are its own
    rebind(source, other._b, geometry, other._o)
    return source


def _set_to_nothing(source: DeviceTensor) -> DeviceTensor:
    """A storage of its own that is empty; the one of before goes with whoever else shows it."""
    nothing = torch.empty(0, dtype=source.dtype, device=device())
    assert isinstance(nothing, DeviceTensor)
    return _set_tensor(source, nothing)


def set_strided(
    target: DeviceTensor, source: Any, storage_offset: int = 0, size: Any = None, stride: Any = ()
) -> DeviceTensor:
    """`Tensor.set_` to a storage, or to that of a tensor; it grows where it is too small."""
    if isinstance(source, DeviceTensor):
        if not source.is_contiguous():
            raise RuntimeError("passed in tensor to be used as storage must be contiguous")
        storage_offset += source._o
    buffer: BufferHandle = source._b if hasattr(source, "_b") else buffer_behind(source)
    if size is None:
        size = (buffer.nbytes // target._g.itemsize,)
    check_offset_number(storage_offset)
    # Of the same shape as before, torch leaves the strides as they are and looks no further.
    as_before = not stride and tuple(size) == target._g.shape
    stride = tuple(target._g.stride if as_before else stride or contiguous_stride(tuple(size)))
    if len(size) != len(stride):
        raise RuntimeError(f"unequal size length ({len(size)}) and stride length ({len(stride)})")
    check_extent(size, stride)
    if min(stride, default=0) < 0:  # where it leads nowhere
        stride = _forwards(size, stride)
    geometry = intern(target._g.dtype, tuple(size), stride, target._g.bits)
    _make_room(buffer, geometry, storage_offset)
    rebind(target, buffer, geometry, storage_offset)
    return target


def _forwards(size: Any, stride: tuple[int, ...]) -> tuple[int, ...]:
    """Strides with torch's own in place of those below 0."""
    made: list[int] = []
    inner = 1
    for n, step in zip(reversed(size), reversed(stride), strict=True):
        made.insert(0, step if step >= 0 else inner)
        inner = max(n, 1) * made[0]
    return tuple(made)


def _conj(source: DeviceTensor) -> DeviceTensor:
    return _with_bits(source, wire.CONJ) if source._g.dtype.is_complex else _detach(source)


def _neg_view(source: DeviceTensor) -> DeviceTensor:
    return _with_bits(source, wire.NEG)


def _with_bits(source: DeviceTensor, flip: int) -> DeviceTensor:
    old = source._g
    geometry = intern(old.dtype, old.shape, old.stride, old.bits ^ flip)
    return wrap(source._b, geometry, source._o)


HANDLERS: dict[str, Any] = {
    "aten::detach": _detach,
    "aten::alias": _detach,
    "aten::lift": _detach,
    "aten::lift_fresh": _detach,
    "aten::as_strided": _as_strided,
    "aten::as_strided_": _as_strided_,
    "aten::resize_": resize,
    "aten::resize_as_": _resize_as_,
    "aten::set_": _set_to_nothing,
    "aten::set_.source_Tensor": _set_tensor,
    "aten::set_.source_Storage_storage_offset": set_strided,
    "aten::set_.source_Tensor_storage_offset": set_strided,
    "aten::_conj": _conj,
    "aten::_neg_view": _neg_view,
}
