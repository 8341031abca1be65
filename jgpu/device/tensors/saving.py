"""`torch.save` and `torch.load` with files that a machine with a CUDA device shares.

A device tensor is pickled as an ordinary CUDA tensor is: a storage located at "cuda:0" and torch's
own rebuild functions, so that `weights_only=True` and `map_location` work on either side. On
loading, a storage located at `cuda` is read into host memory and uploaded once, when the first
tensor over it is rebuilt.
"""

import weakref
from collections import OrderedDict
from typing import Any

import torch

from jgpu.device import current
from jgpu.device.geometry import intern
from jgpu.device.tensor import BufferHandle, DeviceTensor, new_buffer, wrap
from jgpu.device.tensors.storage import storage_of
from jgpu.device.tracebacks import unseen
from jgpu.wire import program as wire

__all__ = ["install", "reduce"]

_LOCATION = "cuda:0"
#: host copies of buffers while a pickler holds them, so that sharing is kept; each knows what was
#: recorded before it was made, for somebody may hold it past the next update
_downloaded: weakref.WeakValueDictionary[BufferHandle, Any] = weakref.WeakValueDictionary()


def install() -> None:
    """Register the location with torch and patch the rebuild function."""
    from torch import serialization

    # Before torch's own "cpu" (10): a host storage that stands for a device's says so first.
    serialization.register_package(5, _tag, _deserialize)
    utils: Any = torch._utils
    original = utils._rebuild_tensor

    def rebuild_tensor(storage: Any, offset: int, size: Any, stride: Any) -> torch.Tensor:
        untyped = storage._untyped_storage
        if getattr(untyped, "_jgpu_location", None) is None:
            result: torch.Tensor = original(storage, offset, size, stride)
            return result
        buffer = _uploaded(untyped)
        geometry = intern(storage.dtype, tuple(size), tuple(stride))
        return wrap(buffer, geometry, offset)

    set_metadata = utils.set_tensor_metadata

    def set_tensor_metadata(tensor: Any, metadata: Any) -> None:
        set_metadata(tensor, metadata)
        if type(tensor) is DeviceTensor:
            old = tensor._g
            conj, neg = wire.CONJ * tensor.is_conj(), wire.NEG * tensor.is_neg()
            tensor._g = intern(old.dtype, old.shape, old.stride, conj | neg)

    read: Any = torch.UntypedStorage._set_from_file

    def set_from_file(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = read(self, *args, **kwargs)
        buffer = getattr(self, "_jgpu_buffer", None)
        self._torch_load_uninitialized = False  # torch leaves it as it was
        if buffer is not None:
            current.session.fill(buffer, _bytes(self))
        return result

    torch.UntypedStorage._set_from_file = unseen(set_from_file)  # type: ignore[method-assign]
    utils._rebuild_tensor = unseen(rebuild_tensor)
    utils.set_tensor_metadata = unseen(set_tensor_metadata)


def _tag(storage: Any) -> str | None:
    return getattr(storage, "_jgpu_location", None)


def _deserialize(storage: Any, location: str) -> Any:
    if not location.startswith("cuda"):
        return None
    made = storage
    made._jgpu_location = _LOCATION
    return made


def _uploaded(untyped: Any) -> BufferHandle:
    """The buffer of a storage that was read from a file; uploaded once.

    In files of the old format the bytes come after the tensors: then it is uploaded when they are
    read (`_set_from_file`).
    """
    buffer: BufferHandle | None = getattr(untyped, "_jgpu_buffer", None)
    if buffer is None:
        buffer = new_buffer(untyped.nbytes(), current.session.buffers.graveyard)
        if not getattr(untyped, "_torch_load_uninitialized", False):
            current.session.fill(buffer, _bytes(untyped))
        untyped._jgpu_buffer = buffer
    return buffer


def _bytes(untyped: Any) -> Any:
    flat = torch.empty(0, dtype=torch.uint8, device="cpu").set_(untyped)
    return flat.numpy().data


def reduce(tensor: DeviceTensor) -> Any:
    """What `pickle` stores for a device tensor: torch's own functions over a located storage."""
    host = _downloaded.get(tensor._b)
    if host is None or host._jgpu_recorded != current.session.recorded:
        host = storage_of(tensor._b).cpu()
        host._jgpu_location = _LOCATION  # type: ignore[attr-defined]
        host._jgpu_recorded = current.session.recorded  # type: ignore[attr-defined]
        _downloaded[tensor._b] = host
    geometry = tensor._g
    typed = torch.storage.TypedStorage(wrap_storage=host, dtype=geometry.dtype, _internal=True)
    hooks: OrderedDict[Any, Any] = OrderedDict()
    metadata = torch._utils.get_tensor_metadata(tensor)
    grad = tensor.requires_grad
    args: tuple[Any, ...] = (typed, tensor._o, geometry.shape, geometry.stride, grad, hooks)
    if metadata:
        args = (*args, metadata)
    if not getattr(tensor, "_is_param", False):
        return torch._utils._rebuild_tensor_v2, args
    args = (typed, tensor._o, geometry.shape, geometry.stride, False, OrderedDict())
    plain = _Plain(torch._utils._rebuild_tensor_v2, args)
    return torch._utils._rebuild_parameter, (plain, grad, OrderedDict())


class _Plain:
    """The bare tensor inside a pickled parameter."""

    def __init__(self, function: Any, args: tuple[Any, ...]) -> None:
        self._reduced = function, args

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self._reduced
