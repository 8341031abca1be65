"""TorchScript modules on the device are saved and loaded as on a CUDA machine.

torch's C++ reads each tensor by the storage that a wrapper has for C++'s sake, which has no bytes;
while a module is saved, its tensors are known by these storages. What C++ makes when it loads has
no bytes either, so a file is loaded on the host, and the module is moved.

`torch.jit.trace` records `_convolution`, which native PyTorch calls below `convolution`. The device
never comes there, so a kernel at the tracer's key calls it. The ONNX exporter compares and computes
with parameters in C++, by pointers, so it gets them on the host.

Covers a module's parameters and buffers; tensors among the constants of traced code are refused.
"""

import functools
import warnings
from collections.abc import Callable
from typing import Any

import torch

from jgpu.device.errors import refused
from jgpu.device.tensor import BufferHandle, DeviceTensor
from jgpu.device.tracebacks import unseen

__all__ = ["buffer_behind", "install"]


_library: Any = None


class _Saving:
    """The buffers of the module that is being saved, by their wrappers' storages."""

    buffers: dict[int, BufferHandle] | None = None


def install() -> None:
    """Patch the two ways in which such a module is saved, and that in which it is loaded."""
    from torch.jit import _serialization, _trace
    from torch.jit._script import RecursiveScriptModule

    kinds: Any = (RecursiveScriptModule, _trace.TopLevelTracedModule)
    for kind in kinds:
        for name in ("save", "save_to_buffer"):
            setattr(kind, name, unseen(_known(getattr(kind, name))))
    global _library
    _library = torch.library.Library("aten", "IMPL")
    with warnings.catch_warnings():  # that torch's kernel is replaced
        warnings.simplefilter("ignore")
        _library.impl("convolution", unseen(_convolution), "Tracer", with_keyset=True)
    for name in ("eval_peephole", "constant_fold", "deduplicate_initializers"):
        name = f"_jit_pass_onnx_{name}"
        setattr(torch._C, name, _with_host_parameters(getattr(torch._C, name)))
    load = unseen(_moved(_serialization.load))
    _serialization.load = torch.jit.load = load


@functools.cache
def _tracer() -> Any:
    """The tracer's dispatch key, which torch's Python class does not name."""
    return torch._C._dispatch_key_parse("Tracer")


def _with_host_parameters(original: Callable[..., Any]) -> Callable[..., Any]:
    """A pass of the ONNX exporter over a graph and its parameters, given these on the host."""

    @functools.wraps(original)
    def run(graph: Any, parameters: Any, *args: Any) -> Any:
        moved = {
            name: value.cpu() if isinstance(value, DeviceTensor) else value
            for name, value in parameters.items()
        }
        return original(graph, moved, *args)

    return unseen(run)


def _convolution(keys: Any, *args: Any) -> Any:
    """`convolution` while `torch.jit.trace` records."""
    if not any(isinstance(each, DeviceTensor) for each in args[:3]):
        below = keys & torch._C._dispatch_keyset_full_after(_tracer())
        return torch.ops.aten.convolution.default.redispatch(below, *args)
    cudnn = torch.backends.cudnn
    exact = cudnn.deterministic or torch.are_deterministic_algorithms_enabled()
    switches = (cudnn.benchmark, exact, cudnn.enabled, cudnn.allow_tf32)
    return torch.ops.aten._convolution.default(*args, *switches)


def buffer_behind(storage: Any) -> BufferHandle:
    """The buffer that a storage of torch's C++ stands for."""
    found = (_Saving.buffers or {}).get(storage._cdata)
    if found is None:
        raise refused(
            "saving TorchScript code with tensors of the device in it",
            "save a module that is on the CPU: module.cpu()",
        )
    return found


def _known(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def save(self: Any, *args: Any, **kwargs: Any) -> Any:
        before = _Saving.buffers
        _Saving.buffers = {
            torch._C.TensorBase.untyped_storage(tensor)._cdata: tensor._b
            for tensor in (*self.parameters(), *self.buffers())
            if isinstance(tensor, DeviceTensor)
        }
        try:
            return original(self, *args, **kwargs)
        finally:
            _Saving.buffers = before

    return save


def _moved(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def load(f: Any, map_location: Any = None, *args: Any, **kwargs: Any) -> Any:
        begin = f.tell() if hasattr(f, "tell") else 0
        if map_location is None:
            module = original(f, None, *args, **kwargs)
            places = {t.device.type for t in (*module.parameters(), *module.buffers())}
            if "cuda" not in places:
                return module
            if len(places) > 1:
                raise refused(
                    "loading a TorchScript module of which some tensors are on the device",
                    'load it with map_location="cpu", and move it or its parts',
                )
            if hasattr(f, "seek"):
                f.seek(begin)
        elif torch.device(map_location).type != "cuda":
            return original(f, map_location, *args, **kwargs)
        return original(f, "cpu", *args, **kwargs).to("cuda")

    return load
