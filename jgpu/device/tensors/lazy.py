"""Lazy parameters and buffers that belong to the device.

A lazy tensor is an object of one of two classes of torch, and a device tensor has a class of its
own. So a lazy tensor of the device is an empty host tensor that says it is on the device, and
`materialize` gives it its contents there.
"""

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import UninitializedBuffer, UninitializedParameter
from torch.utils.weak import WeakTensorKeyDictionary

from jgpu.device.tensor import CUDA, DeviceTensor
from jgpu.device.tracebacks import unseen

__all__ = ["converted", "converted_buffer", "install"]

_Base: Any = torch._C.TensorBase
#: the lazy tensors of the device
_on_device = WeakTensorKeyDictionary()


def install(convert_in_place: Callable[[Any, torch.Tensor], Any]) -> None:
    """Patch torch's lazy classes; `convert_in_place` gives a host tensor contents on the device."""
    mixin: Any = torch.nn.parameter.UninitializedTensorMixin  # type: ignore[attr-defined]
    for kind in (UninitializedParameter, UninitializedBuffer):
        _patch_new(kind)
    for name, there, property_of in (
        ("device", CUDA, _Base.device),
        ("is_cuda", True, _Base.is_cuda),
        ("is_cpu", False, _Base.is_cpu),
    ):
        setattr(mixin, name, property(_told(there, property_of.__get__)))
    mixin.data = property(unseen(_data), torch.Tensor.data.fset)  # type: ignore[attr-defined]
    materialize = mixin.materialize

    @functools.wraps(materialize)
    def make(self: Any, shape: Any, device: Any = None, dtype: Any = None) -> None:
        target = self.device if device is None else torch.device(device)
        _on_device.pop(self, None)
        materialize(self, shape, device="cpu" if target.type == "cuda" else device, dtype=dtype)
        if target.type == "cuda":
            convert_in_place(self, torch.empty(shape, device=target, dtype=self.dtype))

    mixin.materialize = unseen(make)
    # The list holds functions that are patched now.
    allowed = mixin._allowed_methods
    patched = [getattr(torch.Tensor, each.__name__, each) for each in allowed]
    mixin._allowed_methods = [*allowed, *(each for each in patched if each not in allowed)]


def _told(there: Any, here: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return unseen(lambda self: there if self in _on_device else here(self))


def _data(self: Any) -> torch.Tensor:
    data: torch.Tensor = _empty(self) if self in _on_device else _Base.data.__get__(self)
    return data


def _empty(lazy: Any) -> torch.Tensor:
    """A plain tensor without elements, of its type and in its place."""
    return torch.empty(0, dtype=lazy.dtype, device=lazy.device)


def _patch_new(kind: Any) -> None:
    original = kind.__new__

    @functools.wraps(original)
    def new(
        cls: Any, requires_grad: Any = None, device: Any = None, dtype: Any = None, **more: Any
    ) -> Any:
        if requires_grad is not None:
            more["requires_grad"] = requires_grad
        empty = torch.empty(0, device=device, dtype=dtype)
        if type(empty) is not DeviceTensor:
            return original(cls, device=device, dtype=dtype, **more)
        made = original(cls, device="cpu", dtype=empty.dtype, **more)
        _on_device[made] = True
        return made

    kind.__new__ = staticmethod(unseen(new))


def converted(lazy: Any, fn: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """What `nn.Module._apply` puts in place of a lazy parameter: itself, unless it is on "meta"."""
    with torch.no_grad():
        made = fn(_empty(lazy))
    there = type(made) is DeviceTensor
    if not there and not torch._has_compatible_shallow_copy_type(lazy, made):
        return nn.Parameter(made, lazy.requires_grad)
    _Base.data.__set__(lazy, torch.empty(0, dtype=made.dtype, device="cpu"))
    _mark(lazy, there)
    return lazy


def converted_buffer(lazy: Any, fn: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """The same for a lazy buffer, where torch makes a new object."""
    made = fn(_empty(lazy))
    if type(made) is not DeviceTensor and made.device.type != "cpu":
        return made
    fresh = type(lazy)(lazy.requires_grad, device="cpu", dtype=made.dtype)
    fresh.__dict__.update(lazy.__dict__)
    _mark(fresh, type(made) is DeviceTensor)
    return fresh


def _mark(lazy: Any, there: bool) -> None:
    if there:
        _on_device[lazy] = True
    else:
        _on_device.pop(lazy, None)
