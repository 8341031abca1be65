"""Bytes between host and device: `.to`, `copy_`, `.cpu()`, `.item()`.

An upload has copied when it returns: the caller may overwrite its tensor at once. A download waits
for all earlier work of the session. Conversions of dtype happen where native torch does them: on
the source's side.
"""

from struct import Struct
from typing import Any, NoReturn

import torch

from jgpu.accelerator import loading
from jgpu.device import current
from jgpu.device.errors import on_its_line, refused, use_of_lost
from jgpu.device.geometry import InternedGeometry, extent, intern, is_dense
from jgpu.device.recording.ops import OpInfo
from jgpu.device.recording.record import Rewritten
from jgpu.device.sparse import conversions
from jgpu.device.tensor import DeviceTensor, device, wrap
from jgpu.errors import WorkFailed
from jgpu.wire import limits
from jgpu.wire import program as wire

__all__ = ["copy", "download", "item", "refuse_pinning", "upload", "upload_fresh"]

#: torch's own: these modules' functions are replaced, for notebooks, after this is imported
_empty_strided = torch.empty_strided
_bytes_of = getattr(loading.load(), "bytes_of", None)


def copy(info: OpInfo, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Carry out one of the ops of kind COPY.

    NotImplemented, or what is to be recorded, where both sides are on the device.
    """
    return _HANDLERS[info.name.partition(".")[0]](*args, **kwargs)


def upload(source: torch.Tensor) -> DeviceTensor:
    """A host tensor's copy on the device, which lies as a copy on the host would."""
    host = source.detach()
    if host.is_conj():
        host = host.resolve_conj()
    if host.is_neg():
        host = host.resolve_neg()
    if host.layout != torch.strided:
        raise refused(f"uploads of a tensor of layout {host.layout}", "make it dense first")
    shape = tuple(host.shape)
    geometry = intern(host.dtype, shape, host.stride())
    if not is_dense(geometry):
        host = host.clone()  # without gaps, in the order of its dimensions
        geometry = intern(host.dtype, shape, host.stride())
    if geometry.numel == 0:
        return wrap(current.session.upload(b"", 0), geometry)
    return wrap(current.session.upload(_bytes_in(host, geometry), geometry.nbytes), geometry)


def upload_fresh(host: torch.Tensor) -> DeviceTensor:
    """`upload` of what torch has just made of numbers, in a storage that nobody else has."""
    geometry = intern(host.dtype, host.shape, host.stride())
    if not (geometry.contiguous and geometry.numel):
        return upload(host)
    nbytes = geometry.nbytes
    data = _bytes_of(host, limits.INLINE_BYTES) if _bytes_of is not None else None
    if data is None or len(data) != nbytes:
        data = _bytes_in(host, geometry)
    return wrap(current.session.upload(data, nbytes), geometry)


def _bytes_in(host: torch.Tensor, geometry: InternedGeometry) -> memoryview:
    """The bytes of a dense tensor of the host, which are its own, in the order of its memory."""
    if geometry.contiguous and geometry.dtype in _NUMBERS:
        return host.numpy().data.cast("B")
    flat = torch.as_strided(host, (geometry.numel,), (1,), host.storage_offset())
    return flat.view(torch.uint8).numpy().data


def download(source: DeviceTensor) -> torch.Tensor:
    """A device tensor's copy in host memory; waits for all earlier work."""
    geometry = source._g
    if geometry.bits or not (geometry.contiguous or is_dense(geometry)):
        return _download_by_copy(source)
    session = current.session
    known = session.buffers
    if source._b.graveyard is not known.graveyard or source._b.id in known.poisoned:
        raise use_of_lost(session, source._b)
    host = _empty_strided(geometry.shape, geometry.stride, dtype=geometry.dtype, device="cpu")
    if geometry.numel:
        start = source._o * geometry.itemsize
        current.session.download(source._b, start, _bytes_in(host, geometry))
    return host


def _download_by_copy(source: DeviceTensor) -> torch.Tensor:
    """Bring what has holes, or is seen conjugated, into order on the device first.

    Where there is no memory left for that, with the holes: what exists stays readable.
    """
    dense = None
    try:
        dense = torch.ops.aten.clone.default(source)  # its strides are those of a copy elsewhere
        if dense._g.bits or not is_dense(dense._g):  # be sure not to loop, nor to read beside it
            raise AssertionError("clone left a lazy bit, or holes")
        return download(dense)
    except torch.OutOfMemoryError as error:
        failure = current.session.buffers.poisoned.get(dense._b.id) if dense is not None else error
        if failure is None or str(failure) != str(error):
            raise  # something else failed, and is told now
    shown = source._g
    span = intern(shown.dtype, (extent(shown.shape, shown.stride),), (1,))
    host = download(wrap(source._b, span, source._o)).as_strided(shown.shape, shown.stride)
    if shown.bits & wire.CONJ:
        host = host.conj()
    if shown.bits & wire.NEG:
        host = torch._neg_view(host)
    return host.resolve_conj().resolve_neg().clone()


def item(source: DeviceTensor) -> Any:
    """The Python number of a tensor of one element."""
    geometry = source._g
    number = _NUMBERS.get(geometry.dtype)
    session = current.session
    buffer = source._b
    if number is None or geometry.numel != 1 or geometry.bits:
        return download(source).item()
    known = session.buffers
    if buffer.graveyard is not known.graveyard or buffer.id in known.poisoned:
        raise use_of_lost(session, buffer)
    data = bytearray(number.size)
    session.download(buffer, source._o * number.size, memoryview(data))
    return number.unpack(data)[0]


#: how the numbers of the common dtypes lie in memory
_NUMBERS: dict[torch.dtype, Struct] = {
    torch.float32: Struct("=f"),
    torch.float64: Struct("=d"),
    torch.int64: Struct("=q"),
    torch.int32: Struct("=i"),
    torch.bool: Struct("=?"),
}


def _ours(where: Any) -> bool:
    return where is None or torch.device(where).type in (device().type, "cuda")


def _to_copy(
    source: torch.Tensor,
    *,
    dtype: torch.dtype | None = None,
    layout: Any = None,
    device: Any = None,
    pin_memory: bool | None = None,
    non_blocking: bool = False,
    memory_format: torch.memory_format | None = None,
) -> Any:
    if isinstance(source, DeviceTensor):
        if _ours(device):
            return NotImplemented
        host = download(source)
        return (
            host.to(device=device, dtype=dtype or host.dtype)
            if memory_format is None
            else (host.to(device=device, dtype=dtype or host.dtype, memory_format=memory_format))
        )
    if source.layout is not torch.strided:
        return conversions.from_host(source, dtype)
    if dtype is not None or memory_format not in (None, torch.preserve_format):
        form = memory_format or torch.preserve_format
        source = source.to(dtype=dtype or source.dtype, memory_format=form)
    return upload(source)


def _copy_(target: torch.Tensor, source: torch.Tensor, non_blocking: bool = False) -> Any:
    if isinstance(target, DeviceTensor):
        if isinstance(source, DeviceTensor):
            return NotImplemented
        if not isinstance(source, torch.Tensor):
            return NotImplemented
        host = source.detach().to(target.dtype)
        if _fill_new(target, host):
            return target
        return _between(target, upload(host))
    if isinstance(source, DeviceTensor):
        target.copy_(download(source))
        return target
    return NotImplemented


def _fill_new(target: DeviceTensor, host: torch.Tensor) -> bool:
    """Upload straight into a buffer that was made for it a moment ago and not sent yet."""
    geometry = target._g
    if target._o or geometry.nbytes != target._b.nbytes or not is_dense(geometry):
        return False
    if not current.session.log.is_just_made(target._b):
        return False
    if host.shape != target.shape or host.stride() != geometry.stride or not _plain(host):
        laid = torch.empty_strided(
            geometry.shape, geometry.stride, dtype=geometry.dtype, device="cpu"
        )
        host = laid.copy_(host)
    flat = torch.as_strided(host, (geometry.numel,), (1,), host.storage_offset())
    data = flat.view(torch.uint8).numpy().data if geometry.numel else b""
    return current.session.fill(target._b, data)


def _plain(host: torch.Tensor) -> bool:
    return not (host.is_conj() or host.is_neg()) and host.layout == torch.strided


def _copy_from(source: Any, target: Any, non_blocking: bool = False) -> Any:
    done = _copy_(target, source)
    return _between(target, source) if done is NotImplemented else done


def _between(target: Any, source: Any) -> Rewritten:
    """`copy_` between device tensors, also where torch has switched Python's dispatch off.

    There torch's own `copy_` would ask for `_copy_from` again, without end.
    """
    return Rewritten((target, source), torch.ops.aten.copy_.default)


def _copy_from_and_resize(source: Any, target: Any) -> Any:
    target.resize_(source.shape)
    return _copy_from(source, target)


def _linalg_check_errors(info: DeviceTensor, api_name: str, *, is_matrix: bool) -> None:
    try:
        codes = download(info)
    except WorkFailed as error:
        raise on_its_line(error) if "linalg" in error.op else error from None
    torch._linalg_check_errors(codes, api_name, is_matrix=is_matrix)


def refuse_pinning(source: DeviceTensor, device: Any = None) -> NoReturn:
    """Raise what `pin_memory()` of a device tensor raises."""
    raise RuntimeError(
        f"cannot pin 'torch.cuda.{type_name(source)}' only dense CPU tensors can be pinned"
    )


def type_name(tensor: torch.Tensor) -> str:
    """The legacy type's name, as torch's messages use it: FloatTensor, LongTensor."""
    return torch.empty(0, dtype=tensor.dtype, device="cpu").type().rpartition(".")[2]


_HANDLERS: dict[str, Any] = {
    "aten::_to_copy": _to_copy,
    "aten::copy_": _copy_,
    "aten::_copy_from": _copy_from,
    "aten::_copy_from_and_resize": _copy_from_and_resize,
    "aten::_local_scalar_dense": item,
    "aten::_pin_memory": refuse_pinning,
    "aten::_linalg_check_errors": _linalg_check_errors,
}
