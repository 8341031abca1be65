"""A stream of the `cuda` device as its jobs see it: bytes, uses, and when a job has to wait.

It keeps a `Flight` for each launched job; `lane` finds out when one is over.

Invariant: every use on one stream of what another touched last has a wait between, every drop of a
block that other streams used has a finished event. `fake` checks it.
"""

from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Final

import torch

from jgpu.broker.executor.devices.base import LaneJob
from jgpu.broker.executor.devices.calls import Calls
from jgpu.broker.executor.devices.gpu.glimpses import Glimpse, GlimpseRing
from jgpu.broker.executor.devices.gpu.staging import FEW_BYTES, Hop, Staging
from jgpu.broker.executor.programs.buffers import Buffer
from jgpu.broker.flightpage import Record

__all__ = ["Flight", "StreamPort", "Uses"]

#: ops that are launched between two looks at the clock, and how long a job may launch
_OPS: Final = 16
_SLICE_NS: Final = 1_000_000


def _at_once() -> bool:
    return True


class Flight:
    """A job, or a part of one, between its launch and the end of its work on the device."""

    __slots__ = (
        "after",
        "begin",
        "begin_ns",
        "copies",
        "end",
        "hops",
        "job",
        "place",
        "retired",
        "whole",
    )

    def __init__(self, job: LaneJob, begin: Any, begin_ns: int | None) -> None:
        self.job = job
        self.begin = begin
        #: when it began, by the host's clock; None: when the flight before it ended
        self.begin_ns = begin_ns
        self.end: Any = None
        #: on the flight page
        self.place = 0
        #: the job is over with it
        self.whole = True
        #: what to do on the host before the job is finished
        self.after: list[Callable[[], object]] = []
        #: copies from pinned memory that take a while; and what became of them
        self.copies: list[tuple[torch.Tensor, torch.Tensor]] = []
        self.hops: list[Hop] = []
        #: buffers to release when the job is over
        self.retired: list[Buffer] = []


class Uses:
    """State that all lanes of a device share."""

    def __init__(self, calls: Calls, staging: Staging, clock_ns: Callable[[], int]) -> None:
        self.calls = calls
        self.staging = staging
        self.clock_ns = clock_ns
        self.ring = GlimpseRing(calls)
        #: by buffer: the lane whose stream its block belongs to, and the lane that used it last
        self.of: dict[int, tuple[StreamPort, StreamPort]] = {}


class StreamPort:
    """A stream, what flies on it, and the port of its jobs."""

    stoppable = True

    def __init__(self, stream: Any, shared: Uses, flight: Record) -> None:
        self.stream = stream
        self.flight = flight
        self.flying: deque[Flight] = deque()
        #: the event after the last job that was launched here
        self.last: Any = None
        self._shared = shared
        self._calls = shared.calls
        self._uses = shared.of
        #: when the job that is put aside is to be launched again
        self._until: Callable[[], bool] | None = None
        #: the copy that its transfer waits for
        self._hop: Hop | None = None
        #: the launch in progress, when it was first looked at, and whether it waits for others
        self._flight: Flight | None = None
        self._began_ns = 0
        self._waits = False
        #: events that can be reused
        self._spare: list[Any] = []
        #: values on their way, oldest first
        self._glimpses: deque[Glimpse] = deque()

    def _event(self) -> Any:
        return self._spare.pop() if self._spare else self._calls.event()

    def _is_drained(self) -> bool:
        return not self.flying

    # -- when a job continues --------------------------------------------------------------------

    def pauses(self, done: int, *, waits: bool) -> bool:
        """As `Port.pauses`: the stream is to be empty, or others are to have the pump."""
        if waits:
            if not (done or self._waits or self.flying):
                return False
            self._until = self._is_drained
            return True
        if done % _OPS == 0:
            now = self._shared.clock_ns()
            if not self._began_ns:
                self._began_ns = now
            elif now - self._began_ns > _SLICE_NS:
                self._until = _at_once
                return True
        return False

    def put_aside(self, until: Callable[[], bool]) -> None:
        """As `Port.put_aside`."""
        self._until = until

    def stage(self, host: memoryview, *, filled: bool) -> bool:
        """As `Port.stage`: by way of the copying thread, where it takes a while."""
        if self._hop is not None:
            self._hop.check()
            return True
        if len(host) <= FEW_BYTES or self._is_pinned(host):
            return True
        staging = self._shared.staging
        self._hop = staging.bring(host) if filled else staging.make_room(len(host))
        self._until = self._hop.is_over
        return False

    def _is_pinned(self, host: memoryview) -> bool:
        return self._calls.is_pinned(torch.frombuffer(host, dtype=torch.uint8))

    # -- bytes ---------------------------------------------------------------------------------

    def write(self, target: torch.Tensor, source: memoryview | bytes) -> None:
        """From the arena directly where it is pinned, else by way of pinned memory."""
        if isinstance(source, memoryview):
            host = torch.frombuffer(source, dtype=torch.uint8)
            if self._calls.is_pinned(host):
                self._calls.copy(target, host)
                return
        else:
            host = torch.frombuffer(bytearray(source), dtype=torch.uint8)
        staged = self._hop.bytes if self._hop is not None else None
        pinned = self._shared.staging.near(host) if staged is None else staged
        self._keep(pinned)
        self._calls.copy(target, pinned)

    def read(self, buffer: Buffer, offset: int, target: memoryview) -> None:
        """The same way back; the last hop is made when the event was reached."""
        source = buffer.bytes()[offset : offset + len(target)]
        host = torch.frombuffer(target, dtype=torch.uint8)
        if self._calls.is_pinned(host):
            self._calls.copy(host, source)
            return
        staged = self._hop.bytes if self._hop is not None else None
        pinned = self._shared.staging.room(len(target)) if staged is None else staged
        self._calls.copy(pinned, source)
        assert self._flight is not None
        if len(target) > FEW_BYTES:
            self._flight.copies.append((host, pinned))
        else:
            self._flight.after.append(partial(host.copy_, pinned))

    def tell(self, storage: torch.UntypedStorage, then: Callable[[bytes], None]) -> bool:
        """See `Port.tell`: copy to a slot, and record an event after the copy."""
        source = torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)
        copied = self._shared.ring.copy(source)
        if copied is None:
            return False
        assert self._flight is not None
        event = self._event()
        self._calls.record(event, self.stream)
        self._glimpses.append(Glimpse(*copied, event, then, self._flight))
        return True

    def _keep(self, host: torch.Tensor) -> None:
        """Have host memory live until the job is over."""
        assert self._flight is not None
        self._flight.after.append(host.numel)

    # -- uses ----------------------------------------------------------------------------------

    def use(self, buffers: Iterable[Buffer]) -> None:
        """Wait, on the device, for the lanes that used these last."""
        for buffer in buffers:
            key = id(buffer)
            found = self._uses.get(key)
            if found is None:
                continue  # nothing is in it: poisoned
            home, last = found
            if last is not self:
                if last.last is not None:
                    self._calls.wait(self.stream, last.last)
                    self._waits = True
                self._uses[key] = (home, self)

    def made(self, buffers: Iterable[Buffer]) -> None:
        """Their blocks belong to this stream."""
        for buffer in buffers:
            self._uses[id(buffer)] = (self, self)

    def owns(self, buffers: Iterable[Buffer]) -> bool:
        """Whether dropping these at once is safe: only this stream has ever used them."""
        return all(self._owns(buffer) for buffer in buffers)

    def _owns(self, buffer: Buffer) -> bool:
        home, last = self._uses.get(id(buffer), (self, self))
        return home is self and last is self

    def retire(self, buffers: Iterable[Buffer]) -> None:
        """At once if only this stream ever had them, else when the job is over."""
        for buffer in buffers:
            if self._owns(buffer) or self._flight is None:
                self._uses.pop(id(buffer), None)
                self._calls.release(buffer)
            else:
                # The end of this job must follow the other lane's last use, too.
                self.use([buffer])
                self._flight.retired.append(buffer)
