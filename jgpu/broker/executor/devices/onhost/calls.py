"""The CUDA calls of the `cuda` device, answered by the host: see the package."""

import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Final

import torch

from jgpu.broker.executor.devices.onhost.eager import Eagerly
from jgpu.broker.executor.devices.onhost.generator import PhiloxGenerator
from jgpu.broker.executor.devices.onhost.launches import Launcher, Launching
from jgpu.broker.executor.devices.onhost.memory import HostMemory
from jgpu.broker.executor.devices.onhost.shadows import Shadows, is_shadow
from jgpu.broker.executor.devices.onhost.streams import HostEvent, HostStream, HostStreams
from jgpu.broker.executor.programs.buffers import Buffer
from jgpu.wire.messages import DeviceFacts

__all__ = ["HostCalls"]

_TOTAL: Final = 4 << 30
#: an H200's
_CAPABILITY: Final = (9, 0)
_PROCESSORS: Final = 132


class HostCalls:
    """`Calls` over the host's memory and the CPU's kernels."""

    def __init__(self, seed: int = 0, total: int = _TOTAL, *, pins: bool = True) -> None:
        """`seed` decides the order of streams; `pins`: whether arenas can be registered."""
        self.torch_device = torch.device("meta")
        self.streams = HostStreams(seed)
        self.memory = HostMemory(self.streams, total)
        self.shadows = Shadows(self.memory)
        self.launcher = Launcher(self.streams, self.shadows)
        self._pins = pins
        #: host memory that copies may use later: end by beginning
        self._pinned: dict[int, int] = {}

    def facts(self, capacity: int) -> DeviceFacts:
        """Describe it as a GPU."""
        name = "CUDA on the host (shared)"
        return DeviceFacts("cuda", name, capacity, 1, _CAPABILITY, _PROCESSORS)

    def free_bytes(self) -> tuple[int, int]:
        """Bytes that are free, and all bytes."""
        return self.memory.total - self.memory.used, self.memory.total

    def limit_bytes(self, nbytes: int) -> None:
        """Allocations beyond it fail."""
        self.memory.limit = min(nbytes, self.memory.total)

    def stream(self) -> HostStream:
        """A new stream."""
        return self.streams.stream()

    def set_stream(self, stream: HostStream) -> None:
        """For this thread."""
        self.launcher.set_stream(stream)

    def event(self) -> HostEvent:
        """A new event."""
        return HostEvent()

    def record(self, event: HostEvent, stream: HostStream) -> None:
        """It is reached when the stream gets here."""
        self.streams.record(event, stream)

    def wait(self, stream: HostStream, event: HostEvent) -> None:
        """Have the stream wait for the event."""
        self.streams.wait(stream, event)

    def done(self, event: HostEvent) -> bool:
        """Whether it was reached; streams advance meanwhile, as the seed decides."""
        return self.streams.done(event)

    def synchronize(self, event: HostEvent) -> None:
        """Until it was reached."""
        self.streams.synchronize(event)

    def elapsed_s(self, begin: HostEvent, end: HostEvent) -> float:
        """By the host's clock."""
        return max(0.0, end.at_s - begin.at_s)

    def launching(self) -> AbstractContextManager[Any]:
        """Launch ops of this context on the thread's stream."""
        return Launching(self.launcher)

    def asking(self) -> AbstractContextManager[Any]:
        """By the same kernels, on the host's own tensors."""
        return Eagerly()

    def pinned(self, nbytes: int) -> torch.Tensor:
        """Host memory that copies keep alive themselves."""
        made = torch.empty(nbytes, dtype=torch.uint8)
        storage, begin = made.untyped_storage(), made.data_ptr()
        self._pinned[begin] = begin + nbytes
        weakref.finalize(storage, self._pinned.pop, begin).atexit = False
        return made

    def is_pinned(self, host: torch.Tensor) -> bool:
        """Whether the bytes lie in registered memory."""
        begin = host.data_ptr()
        end = begin + host.numel() * host.itemsize
        return any(a <= begin and end <= z for a, z in list(self._pinned.items()))

    def register(self, address: int, nbytes: int) -> bool:
        """As the host allows it."""
        if self._pins:
            self._pinned[address] = address + nbytes
        return self._pins

    def unregister(self, address: int) -> None:
        """The opposite."""
        del self._pinned[address]

    def copy(self, target: torch.Tensor, source: torch.Tensor) -> None:
        """On the current stream; waits for it where the host's side is not pinned.

        Ops return a few tensors of the host, such as the seeds of attention: both sides are the
        host's then.
        """
        launcher, streams = self.launcher, self.streams
        host = source if is_shadow(target) else target
        other = self._as_it_is(target if host is source else source)
        kept = host
        if not self.is_pinned(host):
            if host is source:
                kept = host.clone()
            else:
                streams.drain(launcher.stream)
        if host is source:
            streams.put(launcher.stream, lambda: other().copy_(kept))
        else:
            streams.put(launcher.stream, lambda: kept.copy_(other()))
            if not self.is_pinned(host):
                streams.drain(launcher.stream)

    def _as_it_is(self, tensor: torch.Tensor) -> Callable[[], torch.Tensor]:
        """Return a function that gives the stream the bytes that the tensor has now."""
        return self.shadows.seen(tensor).tensor if is_shadow(tensor) else lambda: tensor

    def release(self, buffer: Buffer) -> None:
        """Free the block together with the storage."""
        buffer.release()

    def generator(self) -> torch.Generator:
        """A place in a Philox sequence."""
        return PhiloxGenerator()

    def mender(self) -> None:
        """Ops of torch do it."""

    def watch_peak(self) -> Callable[[int], int]:
        """By the memory's own count."""
        memory = self.memory
        before = memory.watch()

        def peak(kept: int) -> int:
            stays = memory.used - before - kept
            return memory.most_used - before - max(0, stays)

        return peak
