"""Moving modules and optimizers to the device without losing anybody's identity.

`module.to("cuda")` keeps every `Parameter` object, as natively: its contents are swapped with those
of a tensor on the device; hooks are re-attached, tied weights stay tied, weak references and
optimizers made before keep pointing at the right object.

Also tells the broker what is resident: parameters, module buffers, optimizer state; and marks
optimizer steps as iteration boundaries.
"""

import copyreg
import functools
import gc
import weakref
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from jgpu.device import current
from jgpu.device.sparse.base import CompositeTensor
from jgpu.device.tensor import DeviceTensor
from jgpu.device.tensors import lazy
from jgpu.device.tensors.subclasses import check_class
from jgpu.device.tracebacks import unseen

__all__ = ["convert_in_place", "install"]

#: what says where a tensor's contents are; all else in its dictionary is the user's
_OWN = ("_b", "_g", "_o", "_i", "_v", "_c", "_p")
_optimizers: weakref.WeakSet[Any] = weakref.WeakSet()
#: how many parameters had state when an optimizer's state was last tagged
_tagged: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()


def install() -> None:
    """Patch module conversion, and hook registrations and optimizer steps."""
    from torch.nn.modules import module
    from torch.optim import optimizer

    _Apply.original = nn.Module._apply
    nn.Module._apply = unseen(_apply)  # type: ignore[method-assign]
    module.register_module_parameter_registration_hook(unseen(_registered))
    module.register_module_buffer_registration_hook(unseen(_registered))
    optimizer.register_optimizer_step_post_hook(unseen(_stepped))
    original = optimizer.Optimizer.__init__

    @functools.wraps(original)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        _optimizers.add(self)

    optimizer.Optimizer.__init__ = unseen(init)  # type: ignore[method-assign]
    set_state = optimizer.Optimizer.__setstate__

    @functools.wraps(set_state)
    def restored(self: Any, state: Any) -> None:
        """Copies and unpickled optimizers are made without `__init__`."""
        set_state(self, state)
        _optimizers.add(self)

    optimizer.Optimizer.__setstate__ = unseen(restored)  # type: ignore[method-assign]
    lazy.install(convert_in_place)


class _Apply:
    original: Any = None


def _registered(module: Any, name: str, value: Any) -> None:
    if type(value) is DeviceTensor:
        current.session.tag_resident([value._b])


def _stepped(optimizer: Any, args: Any, kwargs: Any) -> None:
    """An optimizer's step ended: its state is resident, and an iteration ends here."""
    state = optimizer.state
    if len(state) != _tagged.get(optimizer):
        _tagged[optimizer] = len(state)
        current.session.tag_resident(
            [
                value._b
                for values in state.values()
                for value in (values.values() if isinstance(values, dict) else ())
                if type(value) is DeviceTensor
            ]
        )
    current.session.progress.boundary()


def _apply(self: nn.Module, fn: Any, recurse: bool = True) -> nn.Module:
    """`nn.Module._apply` with conversions across devices that keep identities."""
    if (
        torch.__future__.get_overwrite_module_params_on_conversion()
        or torch.__future__.get_swap_module_params_on_conversion()
    ):
        result: nn.Module = _Apply.original(self, fn, recurse)
        return result
    if recurse:
        for child in self.children():
            child._apply(fn)
    for name, param in self._parameters.items():
        if param is not None:
            self._parameters[name] = _convert_parameter(param, fn)
    for name, buffer in self._buffers.items():
        if buffer is not None:
            made = lazy.converted_buffer(buffer, fn) if is_lazy(buffer) else fn(buffer)
            self._buffers[name] = made
            if type(made) is DeviceTensor:
                current.session.tag_resident([made._b])
    return self


def _convert_parameter(param: Any, fn: Any) -> Any:
    if is_lazy(param):
        return lazy.converted(param, fn)
    with torch.no_grad():
        applied = fn(param)
    grad = param.grad
    if isinstance(param, CompositeTensor) or isinstance(applied, CompositeTensor):
        param = convert_in_place(param, applied)
    elif _crosses(param, applied):
        if applied.device.type == "meta":
            param = nn.Parameter(applied, param.requires_grad)
        else:
            param = convert_in_place(param, applied)
    elif type(applied) is not DeviceTensor and _is_swapped(param, applied):
        param.grad = None  # a reference more, with which torch swaps nothing
        torch.utils.swap_tensors(param, nn.Parameter(applied, param.requires_grad))
    elif torch._has_compatible_shallow_copy_type(param, applied):
        param.data = applied
    else:  # "meta" and its like: a new parameter, as natively
        param = nn.Parameter(applied, param.requires_grad)
    if type(applied) is DeviceTensor:
        current.session.tag_resident([param._b])
    if grad is not None:
        param.grad = _convert_gradient(grad, fn)
    return param


def _convert_gradient(grad: Any, fn: Any) -> Any:
    """The same object with other contents where torch keeps it, else a new tensor."""
    with torch.no_grad():
        moved = fn(grad)
    if isinstance(grad, CompositeTensor) or isinstance(moved, CompositeTensor):
        return moved.requires_grad_(grad.requires_grad)
    if not torch._has_compatible_shallow_copy_type(grad, moved) and not _crosses(grad, moved):
        return moved.requires_grad_(grad.requires_grad)
    if _is_swapped(grad, moved) and type(moved) is not DeviceTensor:
        return moved.requires_grad_(grad.requires_grad)
    if moved.device.type == "meta" or not grad.is_leaf:
        return moved.requires_grad_(grad.requires_grad)
    if _crosses(grad, moved):
        return convert_in_place(grad, moved)
    grad.data = moved
    return grad


def _crosses(one: Any, other: Any) -> bool:
    """Whether exactly one of two tensors is on the device."""
    return (type(one) is DeviceTensor) != (type(other) is DeviceTensor)


def _is_swapped(tensor: Any, applied: Any) -> bool:
    """Whether torch exchanges the two whole, as wrappers of several tensors must be."""
    return is_traceable_wrapper_subclass(applied) or isinstance(
        tensor, torch._subclasses.FakeTensor
    )


def convert_in_place(target: Any, value: torch.Tensor) -> Any:
    """Give the object `target` the contents of `value`, which lives on another device.

    Returns the object that now stands for the parameter: `target`, or, where something inside
    torch holds it fast, a new one that optimizers have been told of.
    """
    if isinstance(value, DeviceTensor):
        check_class(type(target))
    hooks = target._backward_hooks if target.is_leaf else None
    accumulate = getattr(target, "_post_accumulate_grad_hooks", None) if target.is_leaf else None
    made = (
        nn.Parameter(value.detach(), target.requires_grad)
        if _is_parameter(target)
        else (value.detach().requires_grad_(target.requires_grad and target.is_leaf))
    )
    extra = {k: v for k, v in target.__dict__.items() if k not in _OWN}
    target.grad = None
    if not _swap(target, made):
        made.__dict__.update(extra)
        _remap(target, made)
        target = made
    else:
        target.__dict__.update(extra)
    if hooks:
        target._backward_hooks = hooks
    if accumulate:
        target._post_accumulate_grad_hooks = accumulate
    return target


def _is_parameter(target: Any) -> bool:
    return isinstance(target, nn.Parameter)


def _swap(target: Any, made: Any) -> bool:
    """Swap class, attributes and implementation; False where torch's graph holds the tensor."""
    if not (_free(target) and _free(made)):
        gc.collect()
        if not (_free(target) and _free(made)):
            return False
    slots = set(copyreg._slotnames(target.__class__)) | set(  # type: ignore[attr-defined]
        copyreg._slotnames(made.__class__)  # type: ignore[attr-defined]
    )
    if slots:
        return False
    target.__class__, made.__class__ = made.__class__, target.__class__
    target.__dict__, made.__dict__ = made.__dict__, target.__dict__
    torch._C._swap_tensor_impl(target, made)
    return True


def _free(tensor: Any) -> bool:
    """Only Python (and an accumulation node that is about to go) holds it."""
    count = tensor._use_count()
    if count <= 1:
        return True
    return bool(count == 2 and tensor.is_leaf and tensor.requires_grad)


def _remap(old: Any, new: Any) -> None:
    """Live optimizers follow a parameter that could not keep its identity."""
    for optimizer in list(_optimizers):
        for group in optimizer.param_groups:
            group["params"] = [new if param is old else param for param in group["params"]]
        if old in optimizer.state:
            optimizer.state[new] = optimizer.state.pop(old)
