"""The tensor that a notebook holds when it says `cuda`: a geometry over a buffer of the broker.

`DeviceTensor` has no memory of its own. `Buffer` is one storage on the device; when Python forgets
it, its id is appended to a list and freed with the next message (finalizers only append).

Invariant: `_b` (buffer), `_g` (geometry) and `_o` (offset) always agree with the wrapper's own
sizes and strides; whatever changes one goes through `rebind`.
"""

from collections.abc import Callable, Iterator
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, NoReturn

import msgspec
import torch

from jgpu.accelerator import loading
from jgpu.device.geometry import InternedGeometry, contiguous_stride
from jgpu.wire import program as wire

__all__ = [
    "CUDA",
    "Backend",
    "BufferHandle",
    "DeviceTensor",
    "SettledBuffer",
    "as_tensor",
    "device",
    "device_tensors",
    "make_wrapper",
    "new_buffer",
    "rebind",
    "set_data",
    "watch_large",
    "wrap",
    "wrapper_of",
]

#: the backend's device, once it is registered (`activate`)
CUDA: Final = torch.device("cuda", 0)

#: what `wrap` calls without the accelerator; the hot path does so itself
make_wrapper = torch.Tensor._make_wrapper_subclass


class Backend:
    """Holds what exists only after the backend was registered."""

    device: torch.device
    #: where the next fake address range begins
    next_address = 0x7F00_0000_0000
    #: bytes above which a new storage is counted at once, and who counts it (`largest`)
    large: float = float("inf")
    note_large: Callable[["BufferHandle"], None] = staticmethod(lambda buffer: None)


def device() -> torch.device:
    """The backend's own torch.device; the dispatcher's truth behind "cuda:0"."""
    return Backend.device


class BufferHandle(msgspec.Struct, eq=False, weakref=True):
    """One storage on the device, owned by one session; made by `new_buffer`.

    `id` is 0 until a program or upload that makes it was sent. Until then nobody else knows it, and
    nothing is told when it goes.
    """

    nbytes: int
    #: where the finalizer leaves the id; each connection has its own, so that a buffer whose
    #: graveyard is not the session's is lost
    graveyard: list[int]
    id: int = 0
    resident: bool = False
    _address: int = 0
    _bury: Any = None

    def settle(self, number: int) -> None:
        """The executor knows it by this id from here on."""
        self.id = number
        self._bury = partial(self.graveyard.append, number)
        self.__class__ = SettledBuffer

    def __reduce__(self) -> NoReturn:
        raise TypeError("This stands for one storage on the device; its tensors can be copied.")

    __copy__ = __reduce__

    def exchange(self, other: "BufferHandle") -> None:
        """Be the storage that the executor knows by the other's id, and the other way round."""
        mine, theirs = self.id, other.id
        self.nbytes, other.nbytes = other.nbytes, self.nbytes
        self.settle(theirs)
        other.settle(mine)
        self._address = other._address = 0

    @property
    def address(self) -> int:
        """A unique fake address, so that aliasing tests see what aliases; never dereferenced."""
        if not self._address:
            self._address = Backend.next_address
            Backend.next_address += (self.nbytes + 511) // 512 * 512 + 512
        return self._address


class SettledBuffer(BufferHandle, eq=False):
    """A storage that the executor knows, and is told of when Python has forgotten it."""

    #: Calls what `_bury` holds. Not a method: Ctrl-C strikes where a function of Python's begins,
    #: and what a finalizer raises is lost.
    __del__ = property(attrgetter("_bury"))


def new_buffer(nbytes: int, graveyard: list[int]) -> BufferHandle:
    """A storage that something recorded next will make; raises where it can never fit."""
    made = BufferHandle(nbytes, graveyard)
    if nbytes > Backend.large:
        Backend.note_large(made)
    return made


def watch_large(nbytes: float, note: Callable[[BufferHandle], None]) -> None:
    """Have `note` called with each new storage of more than `nbytes`, before anything uses it."""
    Backend.large, Backend.note_large = nbytes, staticmethod(note)
    if (library := loading.load()) is not None:
        library.watch_large(nbytes)


def as_tensor(cls: type[torch.Tensor]) -> None:
    """Have the class called what a notebook expects, in messages of Python's."""
    cls.__name__ = cls.__qualname__ = "Tensor"
    cls.__module__ = "torch"


class DeviceTensor(torch.Tensor):
    """A tensor on the shared device. Its face (names, printing, pickling) is in `face`."""

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]
    #: buffer, geometry, offset in elements
    _b: BufferHandle
    _g: InternedGeometry
    _o: int = 0

    @classmethod
    def __torch_dispatch__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """`jgpu.device.recording.entry`; here only so that the class is whole."""
        raise NotImplementedError

    if TYPE_CHECKING:

        def detach(self) -> "DeviceTensor": ...


as_tensor(DeviceTensor)


def device_tensors(value: Any) -> Iterator[DeviceTensor]:
    """All that are in an op's arguments, with lists and tuples of them."""
    if isinstance(value, DeviceTensor):
        yield value
    elif isinstance(value, list | tuple):
        for item in value:
            yield from device_tensors(item)


def wrapper_of(geometry: InternedGeometry) -> tuple[Any, ...]:
    """What `make_wrapper` takes for a tensor at its buffer's beginning; kept on the geometry.

    The offset, and strides that follow from the sizes, are left to torch, which needs a third of
    the call's time to be told them.
    """
    follows = geometry.stride == contiguous_stride(geometry.shape)
    geometry.wrapper = made = (
        DeviceTensor, geometry.shape, None if follows else geometry.stride, None, None,
        geometry.dtype, torch.strided, Backend.device,
    )  # fmt: skip
    return made


def _wrap(buffer: BufferHandle, geometry: InternedGeometry, offset: int = 0) -> DeviceTensor:
    if offset:
        made = make_wrapper(
            DeviceTensor, geometry.shape, geometry.stride, offset, None,
            geometry.dtype, torch.strided, Backend.device,
        )  # fmt: skip
        made._o = offset
    else:
        made = make_wrapper(*(geometry.wrapper or wrapper_of(geometry)))
    made._b = buffer
    made._g = geometry
    if geometry.bits:
        if geometry.bits & wire.CONJ:
            torch._C._set_conj(made, True)
        if geometry.bits & wire.NEG:
            torch._C._set_neg(made, True)
    return made


#: A new tensor over a buffer, by geometry; from an offset on, in elements of its dtype.
wrap: Callable[..., DeviceTensor] = getattr(loading.load(), "wrap", _wrap)

#: what `t.data = other` does, on any wrapper
set_data = torch._C.TensorBase.data.__set__  # type: ignore[attr-defined]


def rebind(
    tensor: DeviceTensor, buffer: BufferHandle, geometry: InternedGeometry, offset: int = 0
) -> None:
    """Make an existing tensor object show another buffer or geometry, as `t.data = ...` does."""
    if geometry is not tensor._g or offset != tensor._o:
        with torch.inference_mode(tensor.is_inference()):  # of one sort with what it is put into
            set_data(tensor, wrap(buffer, geometry, offset))
    tensor._b = buffer
    tensor._g = geometry
    tensor._o = offset
