"""The storage of a device tensor as Python sees it: size, place, identity; its bytes by copies.

To torch it is an untyped storage without bytes on the host; bytes are read and written through a
device tensor over the whole buffer. Does not cover storages that show a part of another
one (`storage[2:5]`).
"""

import weakref
from typing import Any

import torch

from jgpu.device.errors import refused
from jgpu.device.geometry import intern
from jgpu.device.recording import copies
from jgpu.device.recording.growth import resize_storage
from jgpu.device.tensor import CUDA, BufferHandle, DeviceTensor, wrap
from jgpu.device.tracebacks import unseen, unseen_methods

__all__ = ["Storage", "install", "storage_of", "tensor_of", "untyped"]


@unseen_methods
class Storage(torch.UntypedStorage):
    """The storage of one buffer; two tensors over one buffer share the object."""

    _b: BufferHandle

    def __new__(cls, buffer: BufferHandle) -> "Storage":
        """A storage of torch's without bytes, which knows its buffer."""
        made = super().__new__(cls)
        made._b = buffer
        return made

    is_cuda = True
    is_hpu = False
    device = CUDA

    @property
    def _cdata(self) -> int:
        return self._b.address

    def data_ptr(self) -> int:
        """A unique fake address."""
        return self._b.address if self._b.nbytes else 0

    def nbytes(self) -> int:
        """Bytes of the buffer."""
        return self._b.nbytes

    size = nbytes
    __len__ = nbytes

    def get_device(self) -> int:
        """0"""
        return 0

    def is_pinned(self, device: Any = None) -> bool:
        """Device memory is never pinned."""
        return False

    def is_shared(self) -> bool:
        """The same as for CUDA storages."""
        return True

    def share_memory_(self) -> "Storage":
        """Nothing, as torch does for CUDA storages."""
        return self

    def resizable(self) -> bool:
        """Whether `resize_` may be called."""
        return True

    def resize_(self, size: int) -> "Storage":
        """Make the buffer `size` bytes; used by frameworks that free activations by hand."""
        if size != self._b.nbytes:
            resize_storage(self._b, size)
        return self

    # -- bytes -----------------------------------------------------------------------------------

    @property
    def _whole(self) -> DeviceTensor:
        return wrap(self._b, intern(torch.uint8, (self._b.nbytes,), (1,)))

    def cpu(self) -> torch.UntypedStorage:
        """The bytes in a host storage; waits."""
        if not self._b.nbytes:
            return torch.UntypedStorage(0)
        return copies.download(self._whole).untyped_storage()

    def tolist(self) -> list[Any]:
        """The bytes as numbers; waits once."""
        numbers: list[Any] = self.cpu().tolist()
        return numbers

    def __iter__(self) -> Any:
        return iter(self.tolist())

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            raise refused("storages that show a part of another one", "slice a tensor over it")
        return self._whole[index].item()

    def __setitem__(self, index: Any, value: Any) -> None:
        self._whole[index] = value

    def fill_(self, value: Any) -> "Storage":
        """Set every byte."""
        self._whole.fill_(value)
        return self

    def copy_(self, source: Any, non_blocking: Any = None) -> "Storage":  # type: ignore[override]
        """Take over the bytes of a storage of the same size, on either side."""
        if source.nbytes() != self.nbytes():
            raise RuntimeError(
                f"size does not match, self was {self.nbytes()} bytes but src was "
                f"{source.nbytes()} bytes"
            )
        self._whole.copy_(_bytes_of(source))
        return self

    def clone(self) -> "Storage":
        """A copy on the device."""
        return _of(self._whole.clone())

    def new(self) -> "Storage":
        """An empty storage on the device."""
        return _of(torch.empty(0, dtype=torch.uint8, device=CUDA))

    def to(self, *, device: Any, non_blocking: bool = False) -> torch.UntypedStorage:
        """Itself, or a copy on the host."""
        return self if torch.device(device).type == "cuda" else self.cpu()

    def type(self, dtype: Any = None, non_blocking: bool = False) -> Any:
        """The class's name, as torch gives it for a CUDA storage."""
        return "torch.cuda.UntypedStorage" if dtype is None else super().type(dtype, non_blocking)

    def _write_file(self, *args: Any) -> None:
        """Write the bytes into a file for `torch.save`; waits."""
        self.cpu()._write_file(*args)

    def _set_from_file(self, *args: Any) -> "Storage":
        """Read the bytes from a file for `torch.load`."""
        host = torch.UntypedStorage(self._b.nbytes)
        host._set_from_file(*args)
        return self.copy_(host)

    def __repr__(self) -> str:
        lines = "\n ".join(map(str, self.tolist()))
        return f" {lines}\n[torch.storage.UntypedStorage(device=cuda:0) of size {len(self)}]"


# In files the class is torch's, so that they load without jgpu.
Storage.__name__ = torch.UntypedStorage.__name__

_proxies: weakref.WeakValueDictionary[BufferHandle, Storage] = weakref.WeakValueDictionary()


def storage_of(buffer: BufferHandle) -> Storage:
    """The one storage object of a buffer, while anybody holds it."""
    found = _proxies.get(buffer)
    if found is None:
        found = _proxies[buffer] = Storage(buffer)
    return found


def untyped(storage: Any) -> Any:
    """Return the untyped storage of a typed one; any other value unchanged."""
    return storage._untyped_storage if isinstance(storage, torch.TypedStorage) else storage


def tensor_of(
    name: str, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> torch.Tensor | None:
    """What `torch.tensor` and its like make of a device storage; None if they are given none.

    The function is called with a host storage of one element, so types and errors are its own.
    """
    if name == "new_tensor":
        like: Any = args[0]
        args = args[1:]
        kwargs = {"dtype": like.dtype, "device": like.device} | kwargs
        function = torch.tensor
    found: Any = args[0] if args else kwargs.get("data", kwargs.get("obj"))
    storage = untyped(found)
    if not isinstance(storage, Storage):
        return None
    twin: Any = torch.UntypedStorage(16, device="cpu")
    twin_of_bytes = twin
    if storage is not found:
        twin = torch.TypedStorage(wrap_storage=twin, dtype=found.dtype, _internal=True)
    given = {key: value for key, value in kwargs.items() if key not in ("data", "obj", "device")}
    small = function(twin, *args[1:], **given, device="cpu")
    count = storage.nbytes() // small.element_size()
    made: Any = wrap(storage._b, intern(small.dtype, (count,), (1,)))
    if small.untyped_storage().data_ptr() != twin_of_bytes.data_ptr():
        made = made.clone()
    where = kwargs.get("device")
    made = made if where is None else made.to(where)
    return made.requires_grad_() if small.requires_grad else made  # type: ignore[no-any-return]


def install() -> None:
    """Let host storages be copied to the device and from it."""
    target: Any = torch
    theirs: Any = torch.UntypedStorage
    copy, to, is_storage = theirs.copy_, theirs.to, torch.is_storage

    def is_one(obj: Any, /) -> bool:
        return isinstance(obj, Storage) or is_storage(obj)

    def copy_(self: Any, source: Any, non_blocking: Any = None) -> Any:
        return copy(self, source.cpu() if isinstance(source, Storage) else source)

    def moved(self: Any, *, device: Any, non_blocking: bool = False) -> Any:
        if torch.device(device).type != "cuda":
            return to(self, device=device, non_blocking=non_blocking)
        return _of(_bytes_of(self).to(device))

    target.is_storage = unseen(is_one)
    theirs.copy_ = unseen(copy_)
    theirs.to = unseen(moved)
    _make_on_the_device(theirs)
    typed: Any = torch.TypedStorage
    wrapped = typed._new_wrapped_storage

    def wrap_storage(self: Any, made: Any) -> Any:
        if not isinstance(made, Storage):
            return wrapped(self, made)
        return typed(wrap_storage=made, dtype=self.dtype, _internal=True)

    typed._new_wrapped_storage = unseen(wrap_storage)


def _make_on_the_device(cls: Any) -> None:
    """`torch.UntypedStorage(8, device="cuda")`, where torch's C++ has no memory to give."""
    new: Any = torch._C.StorageBase.__new__

    def make(cls: Any, *args: Any, device: Any = None, **kwargs: Any) -> Any:
        if device is None:
            return new(cls, *args, **kwargs)
        if torch.device(device).type != "cuda":
            return new(cls, *args, device=device, **kwargs)
        (given,) = args or (0,)
        if isinstance(given, int):
            return _of(torch.empty(given, dtype=torch.uint8, device=CUDA))
        return _of(torch.tensor(list(given), dtype=torch.uint8, device=CUDA))

    cls.__new__ = unseen(make)


def _of(tensor: torch.Tensor) -> Storage:
    found = tensor.untyped_storage()
    assert isinstance(found, Storage)
    return found


def _bytes_of(storage: Any) -> torch.Tensor:
    if isinstance(storage, Storage):
        return storage._whole
    if storage.device.type == "meta":
        raise NotImplementedError("Cannot copy out of meta tensor; no data!")
    return torch.empty(0, dtype=torch.uint8, device="cpu").set_(storage)
