"""What else asks for real CUDA: `torch.backends`, the profiler, `nn.DataParallel`.

`cudnn.is_acceptable` stays False: torch asks it before it packs an RNN's weights into one buffer by
itself, which is the executor's affair. The profiler records the host's side alone. Collectives are
those of one device.
"""

import functools
import warnings
from collections.abc import Sequence
from typing import Any

from jgpu.device.cuda.devices import check_index
from jgpu.device.errors import refused
from jgpu.device.tensor import CUDA
from jgpu.device.tracebacks import unseen

__all__ = ["install"]


def install() -> None:
    """Replace what asks for real libraries or several devices."""
    import torch.autograd.profiler
    import torch.backends.cuda
    import torch.backends.cudnn
    import torch.nn.parallel._functions
    import torch.nn.parallel.comm

    torch.backends.cuda.is_built = _yes
    torch.backends.cudnn.is_acceptable = _not_acceptable
    if torch._C._has_cuda:
        # A CUDA wheel would load the libraries to tell their versions.
        torch.backends.cudnn.is_available = _yes
    _quiet_profiler(torch.autograd.profiler.profile)
    comm: Any = torch.nn.parallel.comm
    comm.scatter, comm.gather = unseen(_scatter), unseen(_gather)
    comm.broadcast, comm.broadcast_coalesced = unseen(_broadcast), unseen(_broadcast_coalesced)
    parallel: Any = torch.nn.parallel._functions
    parallel._get_stream = _no_stream


def _yes() -> bool:
    return True


def _no_stream(device: Any) -> None:
    """Copies take their turn with all else, so a stream for them would gain nothing."""


def _not_acceptable(tensor: Any) -> bool:
    return False


def _quiet_profiler(profile: Any) -> None:
    original = profile.__init__

    @functools.wraps(original)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        if kwargs.get("use_device") == "cuda" or kwargs.pop("use_cuda", False):
            kwargs["use_device"] = None
            warnings.warn(
                "The profiler records this notebook's own side; the device's work runs in the "
                "broker, where `jgpu top` shows it.",
                stacklevel=3,
            )
        original(self, *args, **kwargs)

    profile.__init__ = unseen(init)


def _only(devices: Sequence[Any]) -> None:
    for device in devices:
        check_index(device)
    if len(devices) > 1:
        raise refused("several devices", "this notebook has one device, cuda:0")


def _scatter(
    tensor: Any,
    devices: Any = None,
    chunk_sizes: Any = None,
    dim: int = 0,
    streams: Any = None,
    *,
    out: Any = None,
) -> tuple[Any, ...]:
    if out is not None:
        return tuple(target.copy_(tensor) for target in out)
    _only(devices)
    return (tensor.to(CUDA),)


def _gather(tensors: Any, dim: int = 0, destination: Any = None, *, out: Any = None) -> Any:
    import torch

    joined = torch.cat([tensor.view(1) if tensor.dim() == 0 else tensor for tensor in tensors], dim)
    if out is not None:
        return out.copy_(joined)
    return joined.cpu() if destination in (-1, "cpu") else joined


def _broadcast(tensor: Any, devices: Any = None, *, out: Any = None) -> tuple[Any, ...]:
    if out is not None:
        return tuple(target.copy_(tensor) for target in out)
    _only(devices)
    return (tensor.to(CUDA),)


def _broadcast_coalesced(tensors: Any, devices: Any, buffer_size: int = 0) -> tuple[Any, ...]:
    _only(devices)
    return (tuple(tensor.to(CUDA) for tensor in tensors),)
