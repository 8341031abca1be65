"""Pinned host memory, as far as a kernel without a GPU has any.

`pin_memory()` copies, as natively, and the copy reports that it is pinned; it is ordinary memory,
and uploads of it are not faster. Pinned storages carry a mark, so views, data loaders and storages
give the same answer. Covers tensors, storages, and every callable of torch's that takes
`pin_memory=`; torch's own allocator of pinned memory belongs to a device that is written in C++ and
is never used.

Does not cover the CUDA runtime (`cudaHostRegister`), which is refused.
"""

from typing import Any

import torch
from torch.overrides import handle_torch_function, has_torch_function_unary

from jgpu.device.recording.copies import refuse_pinning
from jgpu.device.tensor import DeviceTensor
from jgpu.device.tracebacks import unseen

__all__ = ["install", "made_pinned", "pin_memory"]

_MARK = "_jgpu_pinned"
_TensorBase: Any = torch._C.TensorBase
_is_wrapped: Any = torch._C._functorch.is_functorch_wrapped_tensor
_libraries: list[Any] = []


def install() -> None:
    """Give tensors and torch's own ops their answers."""
    tensor: Any = torch.Tensor
    tensor.pin_memory = unseen(pin_memory)
    tensor.is_pinned = unseen(_is_pinned)
    host = torch.library.Library("aten", "IMPL")
    host.impl("_pin_memory", unseen(_copied), "CPU")
    host.impl("is_pinned", unseen(_has_mark), "CPU")
    _libraries.append(host)


def made_pinned(made: torch.Tensor) -> torch.Tensor:
    """Mark the result of a callable with `pin_memory=True`."""
    if made.device.type == "cuda":
        raise RuntimeError("Only dense CPU tensors can be pinned")
    _mark(made)
    return made


def pin_memory(self: torch.Tensor, device: Any = None) -> torch.Tensor:
    """`Tensor.pin_memory()`"""
    if isinstance(self, DeviceTensor):
        refuse_pinning(self)
    if _is_wrapped(self):  # a transform of `torch.func` calls the ops on the inner tensor
        pinned: torch.Tensor = _TensorBase.pin_memory(self)
        return pinned
    if has_torch_function_unary(self):
        made: torch.Tensor = handle_torch_function(torch.Tensor.pin_memory, (self,), self, device)
        return made
    return self if _has_mark(self) else _copied(self)


def _is_pinned(self: torch.Tensor, device: Any = None) -> bool:
    """`Tensor.is_pinned()`"""
    if isinstance(self, DeviceTensor):
        return False
    if _is_wrapped(self):
        return bool(_TensorBase.is_pinned(self))
    if has_torch_function_unary(self):
        return bool(handle_torch_function(torch.Tensor.is_pinned, (self,), self, device))
    return _has_mark(self)


def _copied(self: torch.Tensor, device: Any = None) -> torch.Tensor:
    """A pinned copy of a host tensor; strides are kept."""
    if self.layout is torch.strided and not self.is_nested:
        made = torch.empty_strided(self.size(), self.stride(), dtype=self.dtype, device="cpu")
        made.copy_(self)
    else:
        made = self.clone()
    _mark(made)
    return made


def _has_mark(self: torch.Tensor, device: Any = None) -> bool:
    return all(hasattr(part.untyped_storage(), _MARK) for part in _parts(self))


def _mark(made: torch.Tensor) -> None:
    for part in _parts(made):
        setattr(part.untyped_storage(), _MARK, True)


def _parts(tensor: torch.Tensor) -> list[torch.Tensor]:
    """The strided tensors that hold its values: itself, or those of a sparse tensor."""
    if tensor.layout is torch.strided:
        return [tensor]
    if tensor.layout is torch.sparse_coo:
        return [tensor._indices(), tensor._values()]
    return [tensor.values()]
