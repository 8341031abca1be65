"""`torch.compile` with tensors on the device: the broker compiles, Dynamo looks on.

Whatever a notebook does on the device becomes programs, which the broker compiles once and runs
ever after; a forward, its backward and the optimizer's step are such programs without any call of
`torch.compile`. A compiled function that is given device tensors therefore runs as it is written,
and is recorded. Dynamo would trace this package's Python instead of the notebook's.

With tensors of the host alone a compiled function is torch's own.

Invariant: neither way raises for what the other allows.
"""

import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch

from jgpu.device.errors import refused
from jgpu.device.sparse.base import CompositeTensor
from jgpu.device.tensor import DeviceTensor
from jgpu.device.tracebacks import unseen

__all__ = ["install", "is_on_device"]

_OURS = (DeviceTensor, CompositeTensor)
#: how deep arguments and closures are searched
_DEPTH = 3


def install() -> None:
    """Replace `torch.compile`, which `nn.Module.compile` calls, and refuse what traces on fakes."""
    import torch.export
    import torch.fx.experimental.proxy_tensor

    target: Any = torch
    target.compile = _either_way(torch.compile)
    # What traces by its dispatch mode (`make_fx`, `torch.func.linearize`) looks at exact types; of
    # others it records nothing, and replays what they were then.
    proxy_tensor: Any = torch.fx.experimental.proxy_tensor
    proxy_tensor.HANDLED_TYPES = (*proxy_tensor.HANDLED_TYPES, DeviceTensor)
    tensor: Any = DeviceTensor
    tensor.__coerce_same_metadata_as_tangent__ = _as_tangent
    for name in ("export", "draft_export"):
        if hasattr(torch.export, name):
            setattr(target.export, name, _of_the_host(name, getattr(torch.export, name)))


def _as_tangent(
    tensor: torch.Tensor, metadata: Any, expected_type: type | None = None
) -> torch.Tensor | None:
    """The gradient of an output of AOTAutograd's graphs, which take a device tensor as a plain one.

    `torch.library.opcheck` differentiates such a graph.
    """
    return tensor if metadata is None and expected_type in (None, torch.Tensor) else None


def _of_the_host(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
    """A function that would end the process if it met a device tensor."""

    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        if is_on_device((args, kwargs)):
            raise refused(f"torch.export.{name}", "export the model on the CPU: model.cpu()")
        return original(*args, **kwargs)

    return unseen(call)


def _either_way(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def compile(model: Any = None, **settings: Any) -> Any:  # noqa: A001 - torch's name
        if model is None:
            return lambda function: compile(function, **settings)
        made = original(model, **settings)
        if made is model:  # disabled
            return made
        if isinstance(model, torch.nn.Module):
            made.forward = _chosen(model.__call__, made.forward)
            return made
        return _chosen(model, made)

    return unseen(compile)


def _chosen(plain: Callable[..., Any], compiled: Callable[..., Any]) -> Callable[..., Any]:
    """Calls `plain` where device tensors are at hand, `compiled` elsewhere."""

    @functools.wraps(compiled)
    def call(*args: Any, **kwargs: Any) -> Any:
        if any(is_on_device(value) for value in (args, kwargs, *_surroundings(plain))):
            return plain(*args, **kwargs)
        return compiled(*args, **kwargs)

    return unseen(call)


def is_on_device(value: Any, depth: int = _DEPTH) -> bool:
    """Whether a value is, or holds, a tensor on the device."""
    if isinstance(value, torch.Tensor):
        return isinstance(value, _OURS)
    if isinstance(value, torch.nn.Module):
        tensors = (*value.parameters(), *value.buffers())
        return any(isinstance(tensor, _OURS) for tensor in tensors)
    if isinstance(value, torch.optim.Optimizer):
        return is_on_device(value.param_groups, depth)
    if depth == 0:
        return False
    if isinstance(value, list | tuple | set):
        return any(is_on_device(item, depth - 1) for item in value)
    if isinstance(value, dict):
        return any(is_on_device(item, depth - 1) for item in value.values())
    if hasattr(value, "__dataclass_fields__"):
        values = (getattr(value, name, None) for name in value.__dataclass_fields__)
        return any(is_on_device(each, depth - 1) for each in values)
    return False


def _surroundings(function: Any) -> Iterator[Any]:
    """What a function sees beside its arguments: its object, its closure, globals that it names."""
    yield getattr(function, "__self__", None)
    function = getattr(function, "__func__", function)
    for cell in getattr(function, "__closure__", None) or ():
        try:
            yield cell.cell_contents
        except ValueError:  # not filled yet
            continue
    code = getattr(function, "__code__", None)
    if code is not None:
        known = function.__globals__
        for name in code.co_names:
            if name in known:
                yield known[name]
