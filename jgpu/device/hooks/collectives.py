"""Collectives of `torch.distributed` on device tensors: by way of host copies, and gloo.

Each process has a session of its own, so ranks share nothing on the device. A collective copies its
tensors to the host, does there what it does, and copies back what it wrote; it is over when its
call returns, so what `async_op` gives has nothing to wait for. With one rank that is all there is
to `DistributedDataParallel`.

Does not cover NCCL, which needs a GPU in each process: it is refused.
"""

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from jgpu.device.composed.compiling import is_on_device
from jgpu.device.errors import refused
from jgpu.device.hooks.guard import around_backward
from jgpu.device.recording import copies
from jgpu.device.recording.ops import OpInfo
from jgpu.device.tensor import DeviceTensor, device_tensors
from jgpu.device.tracebacks import unseen

__all__ = ["by_host", "install"]


def by_host(info: OpInfo, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The op `info.func` of c10d on host copies; those that it wrote are then copied back."""
    named = dict(zip(info.positions, args, strict=False)) | kwargs
    given = {id(each): each for each in device_tensors(list(named.values()))}
    written = {
        id(each)
        for name, value in named.items()
        for each in device_tensors(value if _is_written(info, name) else None)
    }
    twins = {key: (each, copies.download(each.detach())) for key, each in given.items()}

    def host(value: Any) -> Any:
        if isinstance(value, DeviceTensor):
            return twins[id(value)][1]
        if isinstance(value, list | tuple):
            return [host(item) for item in value]
        return value

    on_host = {name: host(value) for name, value in named.items()}
    result = info.func(**on_host)
    for value in result if isinstance(result, tuple) else (result,):
        if isinstance(value, torch.ScriptObject):
            work: Any = value
            work.wait()
    with torch.no_grad():
        for key in written:
            tensor, twin = twins[key]
            tensor.copy_(twin)
    device = {id(twin): tensor for tensor, twin in twins.values()}

    def back(value: Any) -> Any:
        if isinstance(value, list | tuple):
            return type(value)(back(item) for item in value)
        return device.get(id(value), value)

    return back(result)


def _is_written(info: OpInfo, name: str) -> bool:
    """The schemas do not say it; names do: `allgather_(output_tensors, input_tensors, …)`."""
    base = info.func._schema.name
    return base.endswith("_") and "barrier" not in base and not name.startswith("input")


def install() -> None:
    """Refuse NCCL by its name, and take gloo where no backend is named."""
    if not torch.distributed.is_available():
        return
    from torch.distributed import distributed_c10d

    for name in ("init_process_group", "new_group"):
        made = unseen(_without_nccl(getattr(distributed_c10d, name)))
        for module in (distributed_c10d, torch.distributed):
            setattr(module, name, made)
    parallel: Any = torch.nn.parallel.DistributedDataParallel
    parallel.__init__ = unseen(_looked_at(parallel.__init__))


def _looked_at(original: Callable[..., Any]) -> Callable[..., Any]:
    """`DistributedDataParallel`, whose reducer in C++ may ask for pinned memory in a backward."""

    @functools.wraps(original)
    def init(self: Any, module: Any, *args: Any, **kwargs: Any) -> None:
        original(self, module, *args, **kwargs)
        if (self.find_unused_parameters or self.static_graph) and is_on_device(module):
            around_backward(_Pageable)

    return init


class _Pageable(TorchDispatchMode):
    """Ordinary host memory where pinned memory is asked for, and called pinned.

    It costs each op in a backward some microseconds, and only the programs that need it have it.
    """

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func is torch.ops.aten.is_pinned.default and not isinstance(args[0], DeviceTensor):
            return True
        if kwargs and kwargs.get("pin_memory"):
            kwargs = {**kwargs, "pin_memory": False}
        return func(*args, **(kwargs or {}))


def _without_nccl(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        first = original.__name__ == "init_process_group"
        backend = args[0] if first and args else kwargs.get("backend")
        if backend is not None and "nccl" in str(backend).lower():
            raise refused("NCCL", 'there is one device; use the backend "gloo"')
        if backend is None and first:
            kwargs["backend"], args = "gloo", args[1:]
        return original(*args, **kwargs)

    return call
