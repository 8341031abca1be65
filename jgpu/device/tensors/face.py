"""How a device tensor appears to Python: "cuda:0", its type, its printing, its refusals.

Everything here is Python attributes of `DeviceTensor` and a few of `torch.Tensor`; no op is
recorded except the ops that printing itself needs (one download).
"""

from typing import Any, NoReturn

import torch

from jgpu.device.geometry import contiguous_stride, intern
from jgpu.device.recording import copies
from jgpu.device.recording.viewing import views
from jgpu.device.sparse import compressed_ops, coo_ops
from jgpu.device.sparse.base import CompositeTensor
from jgpu.device.sparse.conversions import sparsified
from jgpu.device.tensor import CUDA, DeviceTensor, rebind, wrap
from jgpu.device.tensors import saving, storage
from jgpu.device.tensors.storage import Storage, storage_of
from jgpu.device.tracebacks import unseen

__all__ = ["install"]

_TensorBase: Any = torch._C.TensorBase


def install() -> None:
    """Give `DeviceTensor` its face; once."""
    cls: Any = DeviceTensor
    sparse: Any = CompositeTensor
    cls.device = property(lambda self: CUDA)
    cls.is_cuda = property(lambda self: True)
    cls.is_cpu = property(lambda self: False)
    cls.get_device = lambda self: 0
    cls.to_sparse = unseen(sparsified)
    cls.type = unseen(_type)
    cls.set_ = unseen(_set)
    cls.data = property(unseen(_get_data), unseen(_set_data))
    cls.data_ptr = lambda self: self._b.address + self._o * self._g.itemsize if self._g.numel else 0
    cls.untyped_storage = lambda self: storage_of(self._b)
    cls.storage, cls._typed_storage = unseen(_storage), unseen(_typed_storage)
    cls.numpy = unseen(_numpy)
    cls.__array__ = unseen(_array)
    cls.__repr__ = unseen(_repr)
    cls.__format__ = unseen(_format)
    cls.__deepcopy__ = sparse.__deepcopy__ = unseen(saving.deepcopy)
    cls.__reduce_ex__ = sparse.__reduce_ex__ = unseen(saving.reduce)
    cls.__cuda_array_interface__ = property(unseen(_no_interface))
    cls.__dlpack__ = unseen(_no_dlpack)
    cls.__dlpack_device__ = lambda self: (2, 0)
    cls.share_memory_ = lambda self: self
    cls.is_shared = lambda self: True
    cls.record_stream = lambda self, stream: None
    cls.tolist = unseen(lambda self: copies.download(self).tolist())
    cls.__iter__ = unseen(_iterate)
    coo_ops.install()
    compressed_ops.install()
    storage.install()
    torch.Tensor.set_ = unseen(_set_host)  # type: ignore[method-assign]
    torch.Tensor.is_cuda = property(unseen(_is_cuda))  # type: ignore[assignment]
    _patch_host_data()


def _is_cuda(self: torch.Tensor) -> Any:
    """`is_cuda` of tensors of other classes, some of which represent tensors of the device.

    These are wrapped tensors of `torch.func`, jagged, masked and fake tensors. Torch's own
    attribute is true for its own kind of CUDA device only.
    """
    known = _TensorBase.is_cuda.__get__(self)
    if known is not False:
        return known
    if type(self) is torch.Tensor:
        return self.device.type == "cuda"
    with torch._C.DisableTorchFunctionSubclass():
        return self.device.type == "cuda"


def _type(self: DeviceTensor, dtype: Any = None, non_blocking: bool = False, **kw: Any) -> Any:
    if dtype is None:
        return "torch.cuda." + copies.type_name(self)
    if isinstance(dtype, torch.dtype):
        return self.to(dtype)
    name = dtype if isinstance(dtype, str) else f"{dtype.__module__}.{dtype.__name__}"
    module, _, kind = name.rpartition(".")
    made = torch.empty(0, device="cpu").type(f"torch.{kind}").dtype
    return self.to(made) if "cuda" in module else self.cpu().to(made)


def _storage(self: DeviceTensor) -> torch.TypedStorage:
    torch.storage._warn_typed_storage_removal(stacklevel=3)  # `unseen` is between
    return _typed_storage(self)


def _typed_storage(self: DeviceTensor) -> torch.TypedStorage:
    return torch.storage.TypedStorage(
        wrap_storage=storage_of(self._b), dtype=self.dtype, _internal=True
    )


def _set(self: DeviceTensor, source: Any = None, *where: Any, **named: Any) -> torch.Tensor:
    """`Tensor.set_`, whose source may be a storage of the device."""
    typed = isinstance(source, torch.storage.TypedStorage)
    if typed and source.dtype != self.dtype:
        raise RuntimeError(
            f"Expected a Storage of type {self.dtype} or an UntypedStorage, but got type "
            f"{source.dtype} for argument 1 'storage'"
        )
    source = storage.untyped(source)
    if isinstance(source, Storage) or (isinstance(source, DeviceTensor) and (where or named)):
        return views.set_strided(self, source, *where, **named)
    if isinstance(source, torch.UntypedStorage):
        _refuse_storage("cuda:0", "cpu")
    given = () if source is None else (source, *where)
    made: torch.Tensor = _TensorBase.set_(self, *given, **named)
    return made


def _set_host(self: torch.Tensor, *source: Any, **named: Any) -> torch.Tensor:
    """`set_` of a host tensor, to which a storage of the device would look like an empty one."""
    if source and isinstance(storage.untyped(source[0]), Storage):
        _refuse_storage(str(self.device), "cuda:0")
    made: torch.Tensor = _TensorBase.set_(self, *source, **named)
    return made


def _refuse_storage(mine: str, theirs: str) -> NoReturn:
    raise RuntimeError(
        f'Attempted to set the storage of a tensor on device "{mine}" to a storage on different '
        f'device "{theirs}".  This is no longer allowed; the devices must match.'
    )


# -- .data -----------------------------------------------------------------------------------


def _get_data(self: DeviceTensor) -> torch.Tensor:
    shown: torch.Tensor = _TensorBase.data.__get__(self)
    return shown


def _set_data(self: DeviceTensor, value: torch.Tensor) -> None:
    if not isinstance(value, DeviceTensor):
        from jgpu.device.tensors.modules import convert_in_place

        convert_in_place(self, value)
        return
    if value._g is not self._g or value._o != self._o:
        if value._g.bits != self._g.bits:  # torch takes tensors of one kind only
            _set_bits(self, False, False)
            _TensorBase.data.__set__(self, _without_bits(value))
            _set_bits(self, value.is_conj(), value.is_neg())  # of the new type: a real one has none
        else:
            _TensorBase.data.__set__(self, value)
    rebind_quietly(self, value)


def _set_bits(tensor: DeviceTensor, conj: bool, neg: bool) -> None:
    torch._C._set_conj(tensor, conj)
    torch._C._set_neg(tensor, neg)


def _without_bits(tensor: DeviceTensor) -> DeviceTensor:
    """The same elements as they lie in memory."""
    shown = tensor._g
    with torch.inference_mode(tensor.is_inference()):
        return wrap(tensor._b, intern(shown.dtype, shown.shape, shown.stride), tensor._o)


def rebind_quietly(target: DeviceTensor, value: DeviceTensor) -> None:
    """After torch has changed the wrapper: our three attributes follow."""
    target._b = value._b
    target._g = value._g
    target._o = value._o


def _patch_host_data() -> None:
    """`p.data = p.data.to("cuda")` on a host parameter: convert in place, as natively."""
    base = _TensorBase.data

    def set_data(self: torch.Tensor, value: torch.Tensor) -> None:
        if isinstance(value, DeviceTensor):
            from jgpu.device.tensors.modules import convert_in_place

            convert_in_place(self, value)
        else:
            base.__set__(self, value)

    torch.Tensor.data = property(base.__get__, unseen(set_data))  # type: ignore[assignment]


# -- going elsewhere -------------------------------------------------------------------------


def _numpy(self: DeviceTensor, *, force: bool = False) -> Any:
    if force:
        return copies.download(self.detach()).numpy()
    raise TypeError(
        "can't convert cuda:0 device type tensor to numpy. Use Tensor.cpu() to copy the tensor to "
        "host memory first."
    )


def _array(self: DeviceTensor, dtype: Any = None, copy: Any = None) -> Any:
    return _numpy(self)


def _no_interface(self: DeviceTensor) -> Any:
    raise AttributeError(
        "The tensor lives on a shared device and has no address in this process, so other GPU "
        "libraries cannot read it in place. Use Tensor.cpu() and go on from there."
    )


def _no_dlpack(self: DeviceTensor, *args: Any, **kwargs: Any) -> Any:
    raise BufferError(
        "The tensor lives on a shared device and has no address in this process, so it cannot be "
        "exported through DLPack. Use Tensor.cpu() and go on from there."
    )


# -- printing --------------------------------------------------------------------------------


def _repr(self: DeviceTensor, *, tensor_contents: Any = None) -> str:
    from torch import _tensor_str

    host = copies.download(self.detach())
    with torch.no_grad():
        text = _tensor_str._str(host, tensor_contents=tensor_contents)
    extra = "device='cuda:0'"
    if self.grad_fn is not None:
        extra += f", grad_fn=<{type(self.grad_fn).__name__}>"
    elif self.requires_grad:
        extra += ", requires_grad=True"
    head, close = text[:-1], text[-1]
    place = head.rfind(", dtype=")
    if place >= 0 and "\n" not in head[place:] and head[place:].count("=") == 1:
        text = f"{head[:place]}, device='cuda:0'{head[place:]}{extra.removeprefix(_DEVICE)}{close}"
    else:
        text = f"{head}, {extra}{close}"
    return f"Parameter containing:\n{text}" if getattr(self, "_is_param", False) else text


_DEVICE = "device='cuda:0'"


def _format(self: DeviceTensor, spec: str) -> str:
    if self.dim() == 0 and not self.is_complex():
        return format(copies.item(self.detach()), spec)
    if spec:
        return object.__format__(self, spec)
    return _repr(self)


def _iterate(self: DeviceTensor) -> Any:
    if self.dim() == 0:
        raise TypeError("iteration over a 0-d tensor")
    return iter(self.unbind(0))


__all__ += ["Storage", "contiguous_stride", "rebind", "rebind_quietly"]
