"""What the devices that have no memory but the host's share: nothing in them has to be waited for.

What is over when a lane's call returns needs no note here.
"""

from collections import deque
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from ctypes import string_at
from typing import TYPE_CHECKING, NoReturn

import torch

from jgpu.broker.executor.devices.wake import Wake
from jgpu.broker.executor.programs.buffers import Buffer
from jgpu.broker.flightpage import FlightPage

if TYPE_CHECKING:
    from jgpu.broker.executor.devices.base import LaneJob, Port
    from jgpu.broker.executor.programs.checking.guards import Mender

__all__ = ["HostDevice", "HostPort"]


class HostPort:
    """The side of `base.Port` that concerns waiting: no job has to wait for anything here."""

    stoppable = True

    def tell(self, storage: torch.UntypedStorage, then: Callable[[bytes], None]) -> bool:
        """The ops before are over."""
        then(string_at(storage.data_ptr(), storage.nbytes()))
        return True

    def stage(self, host: memoryview, *, filled: bool) -> bool:
        """Host memory is copied as it is."""
        return True

    def pauses(self, done: int, *, waits: bool) -> bool:
        """A lane's thread may wait."""
        return False

    def put_aside(self, until: Callable[[], bool]) -> NoReturn:
        """Never."""
        raise NotImplementedError


class HostDevice:
    """The side of `base.Device` that concerns memory and waking."""

    launches_ahead = False

    def __init__(self, page: FlightPage | None) -> None:
        self._page = page or FlightPage.unshared()
        self.allocate: Callable[[int, int], None] | None = None
        self.watch_peak: Callable[[], Callable[[int], int]] | None = None
        self.mender: Mender | None = None
        #: (lane, job) of what is over, until `completions` tells of it
        self._done: deque[tuple[int, LaneJob]] = deque()
        self._wake = Wake()
        self.wake_fd = self._wake.fd

    def wake(self) -> None:
        """Wake the pump."""
        self._wake.signal()

    def poll_interval_s(self) -> float | None:
        """At once for what was done on the pump's thread; other threads wake the pump."""
        return 0.0 if self._done else None

    def at_work(self) -> bool:
        """No thread of its own."""
        return False

    def port_at_once(self, lane: int, known_s: float) -> "Port | None":
        """No short way where nothing is computed."""
        return None

    def note_at_once(self, lane: int, *, little: bool = False) -> None:
        """Nothing was."""

    def discard(self, buffers: Iterable[Buffer]) -> None:
        """Nothing is in flight, so the memory can go at once."""
        for buffer in buffers:
            buffer.release()

    def leaving(self, buffers: Iterable[Buffer]) -> None:
        """Nothing to wait for."""

    def arrived(self, buffers: Iterable[Buffer]) -> None:
        """Nothing to note."""

    def pin(self, memory: memoryview) -> None:
        """Host memory needs nothing."""

    def unpin(self, memory: memoryview) -> None:
        """Host memory needs nothing."""

    def asking(self) -> AbstractContextManager[None]:
        """Torch's own kernels answer."""
        return nullcontext()

    def generator(self, seed: int) -> torch.Generator:
        """A generator of the CPU kind (where nothing is drawn, its state stands in)."""
        return torch.Generator().manual_seed(seed)
