"""Ops that take functions (`flex_attention`, `torch.ops.higher_order`) on device tensors.

Such an op runs in the form that it has for all devices: its functions are called as they are
written, and the ops inside are recorded and differentiated like any others. Torch's own derivatives
of these ops want the functions as its compiler leaves them, which nothing on the device passes
through (`compiling`).

Not covered: what `torch.cond` and the loops do (`controlflow`); what torch's compiler refuses of
such functions natively; `vmap` and tracing, which come before a tensor's device.
"""

import functools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch._ops import HigherOrderOperator, _higher_order_ops, resolve_key
from torch._subclasses.meta_utils import MetaTensorDescriber

from jgpu.device.errors import refused
from jgpu.device.recording.casts import Uncast
from jgpu.device.tensor import DeviceTensor, device
from jgpu.device.tracebacks import unseen

__all__ = ["install"]

_key: Any = torch._C.DispatchKey


def install() -> None:
    """Give each op its rules, and those that are made later."""
    cls: Any = HigherOrderOperator
    original = cls.__init__

    @functools.wraps(original)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        _introduce(self)

    cls.__init__ = unseen(init)
    for op in _higher_order_ops.values():
        _introduce(op)
    _fakes_of_the_backend()


def _introduce(op: Any) -> None:
    """The tensor's class is asked before its device; autocast comes before both."""
    rule = unseen(_rule(op))
    op.py_impl(DeviceTensor)(rule)
    op.py_impl(_key.AutogradPrivateUse1)(unseen(_differentiated(op)))
    op.py_impl(_key.AutocastPrivateUse1)(unseen(_casting(op)))


def _rule(op: Any) -> Callable[..., Any]:
    def run(*args: Any, **kwargs: Any) -> Any:
        kernel = op.py_kernels.get(resolve_key(op, _key.PrivateUse1))
        if kernel is None:
            raise refused(f"torch.ops.higher_order.{op._name}", "call its functions yourself")
        return kernel(*args, **kwargs)

    return run


def _differentiated(op: Any) -> Callable[..., Any]:
    """Under a mode that traces or counts, torch's own way, which asks the mode."""

    def run(*args: Any, **kwargs: Any) -> Any:
        kernel = op.py_kernels.get(_key.Autograd)
        if kernel is not None and torch._C._len_torch_dispatch_stack():
            return kernel(*args, **kwargs)
        return _rule(op)(*args, **kwargs)

    return run


def _casting(op: Any) -> Callable[..., Any]:
    """As CUDA's: ops that have a cast of their own run inside without any; others pass."""

    def run(*args: Any, **kwargs: Any) -> Any:
        kernel = op.py_kernels.get(_key.AutocastCUDA)
        if kernel is None:
            return _rule(op)(*args, **kwargs)
        with Uncast():
            return kernel(*args, **kwargs)

    return run


def _fakes_of_the_backend() -> None:
    """Fakes that torch makes of our tensors to trace by say that they are on the backend's device.

    On one that says CUDA autograd would ask CUDA for a stream, which ends the process.
    """
    describer: Any = MetaTensorDescriber
    original = describer.describe_tensor

    @functools.wraps(original)
    def describe_tensor(self: Any, tensor: Any, *args: Any, **kwargs: Any) -> Any:
        made = original(self, tensor, *args, **kwargs)
        return replace(made, device=device()) if isinstance(tensor, DeviceTensor) else made

    describer.describe_tensor = unseen(describe_tensor)
