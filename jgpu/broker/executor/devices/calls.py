"""The CUDA calls that the `cuda` device makes, behind a seam.

`CudaCalls` is the real thing; `fake.RecordingCalls` keeps a record instead and checks the rules
between streams on a host without a GPU. Names are torch's; nothing is decided here.
"""

import logging
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol

import torch

from jgpu.broker.executor.devices.gpu.mending import by_nvrtc, compiled_mender
from jgpu.broker.executor.programs.buffers import Buffer
from jgpu.broker.executor.programs.checking.guards import Mender
from jgpu.broker.executor.programs.kinds import KINDS
from jgpu.wire.messages import DeviceFacts

__all__ = ["Calls", "CudaCalls"]

_log = logging.getLogger(__name__)


class Calls(Protocol):
    """What the device needs of CUDA. Streams and events are opaque to it."""

    torch_device: torch.device

    def facts(self, capacity: int) -> DeviceFacts:
        """What clients may know."""

    def free_bytes(self) -> tuple[int, int]:
        """(free, total) bytes of the device."""

    def limit_bytes(self, nbytes: int) -> None:
        """Make the allocator refuse more than this."""

    def stream(self) -> Any:
        """A new stream; at most 32 are ever made."""

    def set_stream(self, stream: Any) -> None:
        """Ops launched from here on go to this stream."""

    def event(self) -> Any:
        """A new event that keeps the time."""

    def record(self, event: Any, stream: Any) -> None:
        """The event is reached when the stream gets here."""

    def wait(self, stream: Any, event: Any) -> None:
        """The stream goes on only when the event was reached."""

    def done(self, event: Any) -> bool:
        """Whether the event was reached; raises what the device raised."""

    def synchronize(self, event: Any) -> None:
        """Wait on the calling thread, which must not be the pump's, for an event."""

    def elapsed_s(self, begin: Any, end: Any) -> float:
        """Seconds between two events that were reached."""

    def launching(self) -> AbstractContextManager[Any]:
        """Around the ops of a job."""

    def asking(self) -> AbstractContextManager[Any]:
        """Around ops on scratch tensors, on a helper's thread."""

    def pinned(self, nbytes: int) -> torch.Tensor:
        """Host bytes that copies to and from the device need not wait for."""

    def is_pinned(self, host: torch.Tensor) -> bool:
        """Whether host bytes are so."""

    def register(self, address: int, nbytes: int) -> bool:
        """Make host bytes so; False if the host does not allow it."""

    def unregister(self, address: int) -> None:
        """The opposite."""

    def copy(self, target: torch.Tensor, source: torch.Tensor) -> None:
        """Copy on the current stream; one of the two is on the host."""

    def release(self, buffer: Buffer) -> None:
        """Give the buffer's block back to the stream that it was allocated on."""

    def generator(self) -> torch.Generator:
        """A new generator."""

    def watch_peak(self) -> Callable[[int], int]:
        """Begin to watch the allocator, as `RunContext.watch_peak`."""

    def mender(self) -> Mender | None:
        """What replaces wrong indices in one launch, if there is such a kernel."""


class CudaCalls:
    """The real calls, for the one GPU that the process sees; made on the pump's thread."""

    def __init__(self) -> None:
        torch.cuda.init()
        self.torch_device = KINDS["cuda"].place
        torch.cuda.set_device(self.torch_device)
        self._cudart: Any = torch.cuda.cudart()

    def facts(self, capacity: int) -> DeviceFacts:
        """What clients may know."""
        found = torch.cuda.get_device_properties(self.torch_device)
        return DeviceFacts(
            "cuda",
            f"{found.name} (shared)",
            capacity,
            1,
            (found.major, found.minor),
            found.multi_processor_count,
        )

    def free_bytes(self) -> tuple[int, int]:
        """From the driver."""
        return torch.cuda.mem_get_info(self.torch_device)

    def limit_bytes(self, nbytes: int) -> None:
        """By the allocator's fraction."""
        _, total = self.free_bytes()
        torch.cuda.set_per_process_memory_fraction(min(1.0, nbytes / total), self.torch_device)

    def stream(self) -> torch.cuda.Stream:
        """One of torch's 32 of normal priority."""
        return torch.cuda.Stream(self.torch_device)

    def set_stream(self, stream: Any) -> None:
        """For this thread."""
        torch.cuda.set_stream(stream)

    def event(self) -> torch.cuda.Event:
        """With timing."""
        return torch.cuda.Event(enable_timing=True)

    def record(self, event: Any, stream: Any) -> None:
        """Asynchronous."""
        event.record(stream)

    def wait(self, stream: Any, event: Any) -> None:
        """The host does not wait."""
        stream.wait_event(event)

    def done(self, event: Any) -> bool:
        """The host does not wait."""
        return bool(event.query())

    def synchronize(self, event: Any) -> None:
        """Others have the interpreter meanwhile."""
        event.synchronize()

    def elapsed_s(self, begin: Any, end: Any) -> float:
        """Torch gives milliseconds."""
        return float(begin.elapsed_time(end)) / 1000.0

    def launching(self) -> AbstractContextManager[Any]:
        """Nothing is needed."""
        return nullcontext()

    def asking(self) -> AbstractContextManager[Any]:
        """Nothing is needed."""
        return nullcontext()

    def pinned(self, nbytes: int) -> torch.Tensor:
        """From torch's host allocator, which keeps it until copies from it are over."""
        return torch.empty(nbytes, dtype=torch.uint8, pin_memory=True)

    def is_pinned(self, host: torch.Tensor) -> bool:
        """As the driver sees it."""
        return host.is_pinned()

    def register(self, address: int, nbytes: int) -> bool:
        """`cudaHostRegister`, as torch itself does it; limits on locked memory may forbid it.

        The error of a refusal stays with the calling thread, as CUDA's last errors do; it must be
        one that launches nothing.
        """
        status = self._cudart.cudaHostRegister(address, nbytes, 1)
        if int(status) != 0:
            _log.info("an arena cannot be pinned (%s); its copies will be slower", status)
            return False
        return True

    def unregister(self, address: int) -> None:
        """`cudaHostUnregister`."""
        self._cudart.cudaHostUnregister(address)

    def copy(self, target: torch.Tensor, source: torch.Tensor) -> None:
        """Asynchronous where the host side is pinned."""
        target.copy_(source, non_blocking=True)

    def release(self, buffer: Buffer) -> None:
        """Torch's allocator keys blocks by the stream that they were allocated on."""
        buffer.release()

    def generator(self) -> torch.Generator:
        """One of the device's kind."""
        return torch.Generator(self.torch_device)

    def mender(self) -> Mender | None:
        """A kernel that is compiled, and compared with torch's ops, here."""
        return compiled_mender(self.torch_device, by_nvrtc)

    def watch_peak(self) -> Callable[[int], int]:
        """By the caching allocator's statistics, which speak of the whole process."""
        device = self.torch_device
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)

        def peak(kept: int) -> int:
            # All launches are this thread's, one by one. What stays beyond the run's own is a
            # workspace that cuBLAS has from here on, or what the copying thread brought back.
            stays = torch.cuda.memory_allocated(device) - before - kept
            return torch.cuda.max_memory_allocated(device) - before - max(0, stays)

        return peak
