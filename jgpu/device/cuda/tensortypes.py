"""The old tensor types: `torch.cuda.FloatTensor` and so on, to make tensors and for `isinstance`.

`isinstance(x, torch.cuda.FloatTensor)`, `torch.cuda.FloatTensor(2, 3)`, `x.type("torch.cuda...")`
and `torch.set_default_tensor_type` work as on CUDA, and so do the sparse types in coordinate form.
"""

import functools
from typing import Any

import torch

from jgpu.device.sparse.coo import SparseTensor
from jgpu.device.tensor import CUDA, DeviceTensor
from jgpu.device.tracebacks import unseen

__all__ = ["install"]

_DTYPES: dict[str, torch.dtype] = {
    "FloatTensor": torch.float32,
    "DoubleTensor": torch.float64,
    "HalfTensor": torch.float16,
    "BFloat16Tensor": torch.bfloat16,
    "ByteTensor": torch.uint8,
    "CharTensor": torch.int8,
    "ShortTensor": torch.int16,
    "IntTensor": torch.int32,
    "LongTensor": torch.int64,
    "BoolTensor": torch.bool,
}


class _TensorType(type):
    """Metaclass of the old types."""

    dtype: torch.dtype
    is_cuda = True
    is_sparse = False
    layout = torch.strided

    def __instancecheck__(cls, instance: Any) -> bool:
        is_ours = isinstance(instance, DeviceTensor) or (
            type(instance) is torch.Tensor  # a transform of `torch.func` has wrapped a tensor
            and instance.layout is torch.strided
            and instance.device == CUDA
        )
        return is_ours and instance.dtype == cls.dtype

    def __call__(cls, *args: Any, device: Any = None) -> torch.Tensor:
        if not args:
            return torch.empty(0, dtype=cls.dtype, device=CUDA)
        first = args[0]
        if isinstance(first, torch.Size):
            return torch.empty(first, dtype=cls.dtype, device=CUDA)
        if all(isinstance(size, int) for size in args):
            return torch.empty(args, dtype=cls.dtype, device=CUDA)
        if isinstance(first, torch.Tensor):
            return first.to(CUDA, cls.dtype)
        if torch.is_storage(first):
            return torch.empty(0, dtype=cls.dtype, device=CUDA).set_(*args)
        return torch.tensor(first, dtype=cls.dtype, device=CUDA)

    def __repr__(cls) -> str:
        return f"<class 'torch.cuda.{cls.__name__}'>"


class _SparseType(_TensorType):
    """Metaclass of the old sparse types."""

    is_sparse = True
    layout = torch.sparse_coo

    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, SparseTensor) and instance.dtype == cls.dtype

    def __call__(cls, *args: Any, device: Any = None) -> torch.Tensor:
        if len(args) > 1 and isinstance(args[0], torch.Tensor):
            return torch.sparse_coo_tensor(*args, dtype=cls.dtype, device=CUDA)
        sizes = args[0] if args and not isinstance(args[0], int) else args
        return torch.zeros(sizes or (0,), dtype=cls.dtype, device=CUDA).to_sparse()

    def __repr__(cls) -> str:
        return f"<class 'torch.cuda.sparse.{cls.__name__}'>"


def _dtype_of(kind: Any) -> torch.dtype | None:
    """The dtype of a device's tensor type, given as class or name; None for other kinds."""
    if isinstance(kind, _TensorType):
        return kind.dtype
    if isinstance(kind, str) and kind.startswith("torch.cuda."):
        return _DTYPES.get(kind.rpartition(".")[2])
    return None


def install() -> None:
    """Replace the types, `Tensor.type` on the host, and the default tensor type."""
    for name, dtype in _DTYPES.items():
        body = {"__module__": "torch.cuda", "dtype": dtype}
        setattr(torch.cuda, name, _TensorType(name, (), body))
        if hasattr(torch.cuda.sparse, name):
            body = {"__module__": "torch.cuda.sparse", "dtype": dtype}
            setattr(torch.cuda.sparse, name, _SparseType(name, (), body))
    tensor: Any = torch.Tensor
    tensor_type = torch._C.TensorBase.type
    set_default = torch.set_default_tensor_type

    @functools.wraps(tensor_type)
    def of_type(self: Any, dtype: Any = None, *args: Any, **kwargs: Any) -> Any:
        found = None if dtype is None else _dtype_of(dtype)
        if found is not None:
            return self.to(CUDA, found)
        return tensor_type(self, dtype, *args, **kwargs)

    @functools.wraps(set_default)
    def set_default_tensor_type(kind: Any, /) -> None:
        found = _dtype_of(kind)
        if found is None:
            set_default(kind)
            torch.set_default_device("cpu")
        else:
            torch.set_default_dtype(found)
            torch.set_default_device("cuda")

    tensor.type = unseen(of_type)
    torch.set_default_tensor_type = unseen(set_default_tensor_type)
