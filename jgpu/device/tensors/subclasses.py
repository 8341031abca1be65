"""Tensors of a notebook's own class: refused in one sentence where they would come to the device.

Natively a class such as `class Points(torch.Tensor)` or `class Angle(nn.Parameter)` takes any
tensor. On the device every tensor is of one class, by which torch reaches this package, and an
object has but one. To go on with plain tensors would leave out what the class does, in silence: an
optimizer on a manifold that looks for its class of parameters would take ordinary steps.

Does not cover the classes of torch itself, which are known and dealt with where they are met, and
`Tensor._make_subclass`, where torch's own error stands: torch's compiler compares its signature.
"""

import functools
from typing import Any, NoReturn

import torch
from torch import nn

from jgpu.device.errors import refused
from jgpu.device.tensor import DeviceTensor
from jgpu.device.tracebacks import unseen

__all__ = ["check_class", "install"]

_PLAIN = (torch.Tensor, nn.Parameter, DeviceTensor)


def install() -> None:
    """Say it in the places where a tensor is given a class."""
    tensor: Any = torch.Tensor
    parameter: Any = nn.Parameter
    as_subclass, new = tensor.as_subclass, parameter.__new__

    def of_class(self: Any, cls: type) -> Any:
        if not isinstance(self, DeviceTensor):
            return as_subclass(self, cls)
        return torch.ops.aten.alias(self) if cls in _PLAIN else _refuse(cls)

    @functools.wraps(new)
    def of_parameters(cls: type, data: Any = None, requires_grad: bool = True) -> Any:
        if cls is not nn.Parameter and isinstance(data, DeviceTensor):
            check_class(cls)
        return new(cls, data, requires_grad)

    tensor.as_subclass = unseen(of_class)
    parameter.__new__ = staticmethod(unseen(of_parameters))


def check_class(cls: type) -> None:
    """Refuse a class that is neither torch's nor ours; what is of it is about to be moved."""
    if cls.__module__.partition(".")[0] not in ("torch", "jgpu"):
        _refuse(cls)


def _refuse(cls: type) -> NoReturn:
    raise refused(
        f"tensors of a class of one's own ({cls.__qualname__})",
        "keep them on the CPU, or make plain tensors of them before they go to the device",
    )
