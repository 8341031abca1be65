"""The `cuda` device: one stream per lane, launched by the pump, polled by events.

Jobs are launched inline; the stream does the waiting. Each job ends with an event; when the oldest
event of a lane was reached, its job is finished and what it retired is given back.

Between streams: torch's allocator gives a dropped block to the stream that it was allocated on, at
once. So a buffer that another lane used last is waited for before this lane uses it, and a buffer
that this lane does not own is dropped only when the event after its last use was reached.

Invariant: every use on one stream of what another touched last has a wait between, every drop of a
block that other streams used has a finished event. `fake` checks it.
"""

from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from time import monotonic_ns
from typing import Any, Final

import torch

from jgpu.broker.executor.devices.base import LaneJob
from jgpu.broker.executor.devices.calls import Calls, CudaCalls
from jgpu.broker.executor.devices.wake import Wake
from jgpu.broker.executor.programs.asking.probe import HANDS, scratch_bytes
from jgpu.broker.executor.programs.buffers import Buffer
from jgpu.broker.flightpage import FlightPage, Record
from jgpu.broker.settings import ExecutorSettings

__all__ = ["CudaDevice"]

#: left free of what the device has: the driver's and the libraries' needs that nobody can count
_MARGIN: Final = 0.03
#: workspaces of cuBLAS and cuDNN per lane
_WORKSPACE: Final = 32 << 20
#: seconds between two looks at the oldest events while something is in flight
_POLL_S: Final = 30e-6


class CudaDevice:
    """Lanes as streams."""

    def __init__(
        self,
        settings: ExecutorSettings,
        calls: Calls | None = None,
        clock_ns: Callable[[], int] = monotonic_ns,
        page: FlightPage | None = None,
    ) -> None:
        self._clock_ns = clock_ns
        self._page = page or FlightPage.unshared()
        self._calls: Calls = CudaCalls(settings.index) if calls is None else calls
        self.torch_device = self._calls.torch_device
        free, total = self._calls.free_bytes()
        usable = int(free - settings.lanes * _WORKSPACE - total * _MARGIN)
        usable -= HANDS * scratch_bytes(usable)
        capacity = min(settings.capacity or usable, usable)
        reserve = settings.lanes * _WORKSPACE + HANDS * scratch_bytes(capacity)
        self._calls.limit_bytes(capacity + reserve)
        self.facts = self._calls.facts(capacity)
        self.allocate: Callable[[int, int], None] | None = None
        self.watch_peak: Callable[[], Callable[[int], int]] | None = self._calls.watch_peak
        self._wake = Wake()
        self.wake_fd = self._wake.fd
        #: streams that no lane has; made once, for torch hands out 32 in all
        self._streams = [self._calls.stream() for _ in range(settings.lanes)]
        self._lanes: dict[int, _Lane] = {}
        #: the stream of copies to and from the host, which the copying thread waits for
        self._copies: _Lane | None = None
        #: by buffer: the lane whose stream its block belongs to, and the lane that used it last
        self.uses: dict[int, tuple[_Lane, _Lane]] = {}
        self._arenas: set[int] = set()

    def open_lane(self, lane: int) -> None:
        """Give the lane a stream."""
        self._lanes[lane] = self._lane(self._streams.pop(), f"lane {lane}")

    def _lane(self, stream: Any, label: str) -> "_Lane":
        flight = self._page.open(label)
        return _Lane(stream, self._calls, self.uses, self._clock_ns, flight)

    def close_lane(self, lane: int) -> None:
        """Take the stream back; buffers may still belong to it."""
        closed = self._lanes.pop(lane)
        assert not closed.flying, "lanes close when nothing is in flight"
        closed.flight.close()
        self._streams.append(closed.stream)

    def submit(self, lane: int, jobs: list[LaneJob]) -> None:
        """Launch the jobs."""
        for job in jobs:
            self._lanes[lane].launch(job)

    def take_back(self, lane: int) -> list[LaneJob]:
        """The stream has all of them, and gives nothing back."""
        return []

    def completions(self) -> list[tuple[int, LaneJob]]:
        """Look at the oldest events; finish what is over. Raises what the device raised."""
        self._wake.clear()
        over = []
        for number, lane in self._lanes.items():
            while (job := lane.land()) is not None:
                over.append((number, job))
        return over

    def wake(self) -> None:
        """Wake the pump."""
        self._wake.signal()

    def poll_interval_s(self) -> float | None:
        """Soon, while something is in flight."""
        return _POLL_S if any(lane.flying for lane in self._lanes.values()) else None

    def discard(self, buffers: Iterable[Buffer]) -> None:
        """All events after their uses were reached: the session has nothing in flight."""
        for buffer in buffers:
            self.uses.pop(id(buffer), None)
            self._calls.release(buffer)

    def host_bytes(self, nbytes: int) -> torch.Tensor:
        """Pinned."""
        return self._calls.pinned(nbytes)

    def leaving(self, buffers: Iterable[Buffer]) -> None:
        """Have the copying stream wait for the lanes that used these last."""
        self._copying().use(buffers)

    def copy_out(self, buffer: Buffer, offset: int, host: torch.Tensor) -> None:
        """Copy on the copying stream, and wait for it."""
        source = buffer.bytes()[offset : offset + host.numel()]
        self._copy_and_wait(host, source)

    def make_room(self, buffer: Buffer) -> None:
        """A block of the copying stream."""
        self._calls.set_stream(self._copying().stream)
        with self._calls.launching():
            empty = torch.empty(buffer.nbytes, dtype=torch.uint8, device=self.torch_device)
        buffer.restore(empty)

    def copy_in(self, buffer: Buffer, offset: int, host: torch.Tensor) -> None:
        """The same way back."""
        self._copy_and_wait(buffer.bytes()[offset : offset + host.numel()], host)

    def _copy_and_wait(self, target: torch.Tensor, source: torch.Tensor) -> None:
        calls, lane = self._calls, self._copying()
        calls.set_stream(lane.stream)
        with calls.launching():
            calls.copy(target, source)
        event = calls.event()
        calls.record(event, lane.stream)
        calls.synchronize(event)
        lane._last = event

    def arrived(self, buffers: Iterable[Buffer]) -> None:
        """Their blocks belong to the copying stream, and what it did to them is over."""
        self._copying().made(buffers)

    def _copying(self) -> "_Lane":
        if self._copies is None:
            self._copies = self._lane(self._calls.stream(), "copying stream")
        return self._copies

    def pin(self, memory: memoryview) -> None:
        """Make an arena's bytes ready for copies that nobody waits for. Any thread."""
        address = _address(memory)
        if self._calls.register(address, len(memory)):
            self._arenas.add(address)

    def unpin(self, memory: memoryview) -> None:
        """Undo `pin`."""
        address = _address(memory)
        if address in self._arenas:
            self._arenas.remove(address)
            self._calls.unregister(address)

    def generator(self, seed: int) -> torch.Generator:
        """A generator of the device."""
        return self._calls.generator().manual_seed(seed)

    launches_ahead = True
    reads_directly = False

    def read_now(self, buffer: Buffer, offset: int, target: memoryview) -> None:
        """Never: reads take their place in a lane."""
        raise NotImplementedError

    def give_back(self) -> None:
        """The caching allocator keeps it: the device is ours alone."""

    def close(self) -> None:
        """The process ends, and with it the context."""
        self._wake.close()


class _Flight:
    """A job between its launch and the end of its work on the device."""

    __slots__ = ("after", "begin", "begin_ns", "end", "job", "place", "retired")

    def __init__(self, job: LaneJob, begin: Any, begin_ns: int | None) -> None:
        self.job = job
        self.begin = begin
        #: when it began, by the host's clock; None: when the flight before it ended
        self.begin_ns = begin_ns
        self.end: Any = None
        #: on the flight page
        self.place = 0
        #: what to do on the host before the job is finished
        self.after: list[Callable[[], object]] = []
        #: buffers that go when the job is over
        self.retired: list[Buffer] = []


class _Lane:
    """A stream with its flights; also the port of its jobs."""

    def __init__(
        self,
        stream: Any,
        calls: Calls,
        uses: dict[int, tuple["_Lane", "_Lane"]],
        clock_ns: Callable[[], int],
        flight: Record,
    ) -> None:
        self.stream = stream
        self.flight = flight
        self.flying: deque[_Flight] = deque()
        self._calls = calls
        self._uses = uses
        #: the event after the last job that was launched here
        self._last: Any = None
        self._clock_ns = clock_ns
        #: when the last flight that landed was over on the device, by the host's clock
        self._over_ns = 0
        self._flight: _Flight | None = None
        self._spare: list[Any] = []

    def launch(self, job: LaneJob) -> None:
        """Put a job's ops on the stream, between two events."""
        calls = self._calls
        calls.set_stream(self.stream)
        begin_ns = None
        if self.flying:
            begin = self.flying[-1].end
        else:
            begin, begin_ns = self._event(), self._clock_ns()  # the idle stream is there at once
            calls.record(begin, self.stream)
        flight = self._flight = _Flight(job, begin, begin_ns)
        try:
            with calls.launching():
                job.launch(self)
        except Exception as error:
            job.broke(error)
        flight.end = self._last = self._event()
        calls.record(flight.end, self.stream)
        flight.place = self.flight.fly()
        self.flight.rest()
        self._flight = None
        self.flying.append(flight)

    def land(self) -> LaneJob | None:
        """The oldest job, if the device is through with it."""
        if not self.flying or not self._calls.done(self.flying[0].end):
            return None
        flight = self.flying.popleft()
        self.flight.landed(flight.place)
        job = flight.job
        job.measured_s = self._calls.elapsed_s(flight.begin, flight.end)
        began = self._over_ns if flight.begin_ns is None else flight.begin_ns
        job.over_ns = self._over_ns = began + round(job.measured_s * 1e9)
        for buffer in flight.retired:
            self._uses.pop(id(buffer), None)
            self._calls.release(buffer)
        try:
            for action in flight.after:
                action()
            job.finish()
        except Exception as error:
            job.broke(error)
        # Nobody asks about it any more: it lies before `end`, and so before `_last`.
        self._spare.append(flight.begin)
        return job

    def _event(self) -> Any:
        return self._spare.pop() if self._spare else self._calls.event()

    # -- the port ----------------------------------------------------------------------------

    def write(self, target: torch.Tensor, source: memoryview | bytes) -> None:
        """From the arena directly where it is pinned, else by way of pinned memory."""
        if isinstance(source, memoryview):
            host = torch.frombuffer(source, dtype=torch.uint8)
            if self._calls.is_pinned(host):
                self._calls.copy(target, host)
                return
        else:
            host = torch.frombuffer(bytearray(source), dtype=torch.uint8)
        pinned = self._calls.pinned(len(source))
        pinned.copy_(host)
        self._keep(pinned)
        self._calls.copy(target, pinned)

    def read(self, buffer: Buffer, offset: int, target: memoryview) -> None:
        """The same way back; the last hop is made when the event was reached."""
        source = buffer.bytes()[offset : offset + len(target)]
        host = torch.frombuffer(target, dtype=torch.uint8)
        if self._calls.is_pinned(host):
            self._calls.copy(host, source)
            return
        pinned = self._calls.pinned(len(target))
        self._calls.copy(pinned, source)
        assert self._flight is not None
        self._flight.after.append(partial(host.copy_, pinned))

    def _keep(self, host: torch.Tensor) -> None:
        """Have host memory live until the job is over."""
        assert self._flight is not None
        self._flight.after.append(host.numel)

    def use(self, buffers: Iterable[Buffer]) -> None:
        """Wait, on the device, for the lanes that used these last."""
        for buffer in buffers:
            key = id(buffer)
            found = self._uses.get(key)
            if found is None:
                continue  # nothing is in it: poisoned
            home, last = found
            if last is not self:
                if last._last is not None:
                    self._calls.wait(self.stream, last._last)
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
                # The end of this job must come after the other lane's last use, too.
                self.use([buffer])
                self._flight.retired.append(buffer)


def _address(memory: memoryview) -> int:
    return torch.frombuffer(memory, dtype=torch.uint8).data_ptr()
