"""Copies between memory that is not pinned and memory that is, beside the pump.

An arena that the host did not allow to be pinned is copied by way of pinned memory. A few bytes
are copied where they are asked for; more of them, and the pinned memory for these, take a thread of
its own, so that nobody's launches wait for a copy.

Invariant: what is asked for is there, or failed, when `over` says so, and not before.
"""

import logging
from collections.abc import Callable
from typing import Any, Final

import torch

from jgpu.broker.executor.aside import HelperThread
from jgpu.broker.executor.devices.calls import Calls
from jgpu.broker.flightpage import Kind, Record

__all__ = ["FEW_BYTES", "UNPINNED", "Hop", "Staging"]

_log = logging.getLogger(__name__)

UNPINNED: Final = (
    "The host gives no pinned memory (%s); copies to and from the GPU are slower. Raise the limit "
    "of locked memory of whoever runs the broker (LimitMEMLOCK=infinity, or ulimit -l unlimited)."
)
#: bytes that are copied in less time than another thread takes to be told
FEW_BYTES: Final = 128 << 10


class Hop:
    """One copy between two places on the host."""

    __slots__ = ("bytes", "error", "over")

    def __init__(self) -> None:
        #: what came of it, in memory that the device is fast with
        self.bytes: torch.Tensor | None = None
        self.over = False
        self.error: Exception | None = None

    def is_over(self) -> bool:
        """Whether it is there, or failed."""
        return self.over

    def check(self) -> None:
        """Raise what it failed by."""
        if self.error is not None:
            raise self.error


class Staging:
    """The thread, started when there is something to do for it."""

    def __init__(
        self, calls: Calls, wake: Callable[[], None], flight: Callable[[], Record]
    ) -> None:
        """`flight` gives the thread's record on the flight page."""
        self._calls = calls
        self._wake = wake
        self._flight = flight
        self._thread: HelperThread | None = None
        #: the host was seen to give no pinned memory
        self._told = False

    def near(self, source: torch.Tensor) -> torch.Tensor:
        """A copy in pinned memory; any thread."""
        return self.room(source.numel()).copy_(source)

    def room(self, nbytes: int) -> torch.Tensor:
        """Pinned memory; where the host gives none, memory like any other. Any thread."""
        try:
            return self._calls.pinned(nbytes)
        except (RuntimeError, MemoryError) as error:
            self.say_unpinned(error)
            return torch.empty(nbytes, dtype=torch.uint8)

    def say_unpinned(self, why: object) -> None:
        """Tell once, in the log, that the host gives no pinned memory. Any thread."""
        if not self._told:
            self._told = True
            _log.warning(UNPINNED, why)

    def bring(self, source: memoryview) -> Hop:
        """Have bytes copied to pinned memory."""
        return self._begin(lambda: self.near(torch.frombuffer(source, dtype=torch.uint8)))

    def make_room(self, nbytes: int) -> Hop:
        """Have pinned memory made."""
        return self._begin(lambda: self.room(nbytes))

    def take(self, target: torch.Tensor, pinned: torch.Tensor) -> Hop:
        """Have bytes copied from pinned memory to where they belong."""
        return self._begin(lambda: target.copy_(pinned))

    def _begin(self, copy: Callable[[], torch.Tensor]) -> Hop:
        hop = Hop()

        def over(result: Any) -> None:
            hop.over = True
            if isinstance(result, Exception):
                hop.error = result
            else:
                hop.bytes = result

        if self._thread is None:
            self._thread = HelperThread("staging", self._wake, Kind.COPY, self._flight())
        self._thread.put(0, copy, over)
        return hop

    def collect(self) -> None:
        """Hear of the copies that are over."""
        if self._thread is not None:
            self._thread.collect()

    def close(self) -> None:
        """End the thread."""
        if self._thread is not None:
            self._thread.close()
