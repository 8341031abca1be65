"""The `cuda` device: one stream per lane, launched by the pump, polled by events.

Jobs are launched inline; the stream does the waiting. Each job ends with an event; when the oldest
event of a lane was reached, its job is finished and its retired buffers are given back. A job that
would block the pump is put aside (`gpu.lane`), or its copy runs on another thread (`gpu.staging`).

Between streams: torch's allocator gives a dropped block to the stream that it was allocated on, at
once. So a buffer that another lane used last is waited for before this lane uses it, and a buffer
that this lane does not own is dropped only when the event after its last use was reached.
"""

import os
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from time import monotonic_ns
from typing import Any, Final

import torch

from jgpu.broker.executor.devices.base import LaneJob
from jgpu.broker.executor.devices.calls import Calls, CudaCalls
from jgpu.broker.executor.devices.gpu.lane import StreamLane
from jgpu.broker.executor.devices.gpu.port import Uses
from jgpu.broker.executor.devices.gpu.staging import Staging
from jgpu.broker.executor.devices.wake import Wake
from jgpu.broker.executor.programs.asking.probe import HANDS, scratch_bytes
from jgpu.broker.executor.programs.buffers import Buffer
from jgpu.broker.executor.programs.kinds import DeviceKind
from jgpu.broker.flightpage import FlightPage
from jgpu.broker.settings import GPU_LANES, ExecutorSettings
from jgpu.errors import ConfigError

__all__ = ["CudaDevice"]

#: part of the device's memory that stays free, for needs of the driver and libraries
_MARGIN: Final = 0.03
#: workspace of cuBLAS, which torch keeps for each thread and stream that has a handle: the pump's
#: on each lane's stream, and that of each thread that answers questions. Hopper's is the largest.
_WORKSPACE: Final = 32 << 20
#: torch hands out so many streams; the next one is the first again
_STREAMS: Final = 32
#: streams without a lane: for copies to and from the host, and for early reads
_OTHERS: Final = 2
#: seconds between two looks at the oldest events while something is in flight
_POLL_S: Final = 20e-6
#: looks without a pause between them after something was launched or over, a few microseconds each,
#: where there are so many cores that one may spin
_LOOKS: Final = 100
_CORES: Final = 4


class CudaDevice:
    """Lanes as streams."""

    kind: DeviceKind = "cuda"

    def __init__(
        self,
        settings: ExecutorSettings,
        calls: Calls | None = None,
        clock_ns: Callable[[], int] = monotonic_ns,
        page: FlightPage | None = None,
    ) -> None:
        self._page = page or FlightPage.unshared()
        self._calls: Calls = CudaCalls() if calls is None else calls
        self.torch_device = self._calls.torch_device
        if settings.lanes > GPU_LANES:
            raise ConfigError(
                f"A GPU has at most {GPU_LANES} lanes, and {settings.lanes} were asked for: torch "
                f"has {_STREAMS} streams, half of which are kept for lanes that are given up and "
                "for copies. Set `lanes` lower."
            )
        free, total = self._calls.free_bytes()
        workspaces = (settings.lanes + HANDS) * _WORKSPACE
        usable = int(free - workspaces - total * _MARGIN)
        usable -= HANDS * scratch_bytes(usable)
        capacity = min(settings.capacity or usable, usable)
        self._calls.limit_bytes(capacity + workspaces + HANDS * scratch_bytes(capacity))
        self.facts = self._calls.facts(capacity)
        self.allocate: Callable[[int, int], None] | None = None
        self.watch_peak: Callable[[], Callable[[int], int]] | None = self._calls.watch_peak
        self.mender = self._calls.mender()
        self._wake = Wake()
        self.wake_fd = self._wake.fd
        #: streams that no lane has; the others are made as lanes that are given up keep theirs
        self._streams = [self._calls.stream() for _ in range(settings.lanes)]
        self._made = settings.lanes
        self._lanes: dict[int, StreamLane] = {}
        #: the stream of copies to and from the host, which the copying thread waits for
        self._copies: StreamLane | None = None
        staging = Staging(self._calls, self._wake.signal, lambda: self._page.open("staging"))
        self._shared = Uses(self._calls, staging, clock_ns)
        #: by buffer: the lane whose stream its block belongs to, and the lane that used it last
        self.uses = self._shared.of
        self._arenas: set[int] = set()
        self._most_looks = _LOOKS if len(os.sched_getaffinity(0)) >= _CORES else 0
        #: looks since something was launched or over
        self._looks = 0

    def open_lane(self, lane: int) -> None:
        """Give the lane a stream."""
        self._lanes[lane] = self._lane(self._stream(), f"lane {lane}")

    def _lane(self, stream: Any, label: str) -> StreamLane:
        return StreamLane(stream, self._shared, self._page.open(label))

    def _stream(self) -> Any:
        """A stream for a lane; there are enough for those that may be retired at once."""
        if self._streams:
            return self._streams.pop()
        assert self._made < _STREAMS - _OTHERS, "more lanes than the settings allow"
        self._made += 1
        return self._calls.stream()

    def close_lane(self, lane: int) -> None:
        """Take the stream back; buffers may still belong to it."""
        closed = self._lanes.pop(lane)
        assert not closed.busy, "lanes close when nothing is in flight"
        closed.flight.close()
        self._streams.append(closed.stream)

    def do_at_once(self, lane: int, jobs: list[LaneJob]) -> None:
        """Always false."""
        self.submit(lane, jobs)

    def does_at_once(self, lane: int, jobs: list[LaneJob]) -> bool:
        """Streams advance without help."""
        return False

    def port_at_once(self, lane: int, known_s: float) -> None:
        """Never."""

    def note_at_once(self, lane: int, *, little: bool = False) -> None:
        """Never."""

    def submit(self, lane: int, jobs: list[LaneJob]) -> None:
        """Launch the jobs."""
        self._lanes[lane].submit(jobs)
        self._looks = 0

    def take_back(self, lane: int) -> list[LaneJob]:
        """Return the jobs that wait for one that was put aside; launched jobs stay."""
        return self._lanes[lane].take_back()

    def completions(self) -> list[tuple[int, LaneJob]]:
        """Look at the oldest events; finish completed jobs, launch those that waited.

        Raises what the device raised.
        """
        self._wake.clear()
        self._shared.staging.collect()
        over = []
        for number, lane in self._lanes.items():
            while (job := lane.land()) is not None:
                over.append((number, job))
            lane.look()
            lane.advance()
        self._looks = 0 if over else self._looks + 1
        return over

    def wake(self) -> None:
        """Wake the pump."""
        self._wake.signal()

    def poll_interval_s(self) -> float | None:
        """At once for a moment, then soon, while something is in flight."""
        if not any(lane.busy for lane in self._lanes.values()):
            return None
        return _POLL_S if self._looks >= self._most_looks else 0.0

    def at_work(self) -> bool:
        """No thread of its own; while a job is in flight the pump polls at once, or soon."""
        return False

    def discard(self, buffers: Iterable[Buffer]) -> None:
        """All events after their uses were reached: the session has nothing in flight."""
        for buffer in buffers:
            self.uses.pop(id(buffer), None)
            self._calls.release(buffer)

    def host_bytes(self, nbytes: int) -> torch.Tensor:
        """Pinned, where the host gives such memory."""
        return self._shared.staging.room(nbytes)

    def leaving(self, buffers: Iterable[Buffer]) -> None:
        """Have the copying stream wait for the lanes that used these last."""
        self._copying().use(buffers)

    def copy_out(self, buffer: Buffer, offset: int, host: torch.Tensor) -> None:
        """Copy on the copying stream, and wait for it."""
        source = buffer.bytes()[offset : offset + host.numel()]
        self._copy_and_wait(host, source)

    def make_room(self, buffer: Buffer) -> None:
        """A block of the copying stream; host memory for what lives there."""
        place = buffer.place or self.torch_device
        self._calls.set_stream(self._copying().stream)
        with self._calls.launching():
            empty = torch.empty(buffer.nbytes, dtype=torch.uint8, device=place)
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
        lane.last = event

    def arrived(self, buffers: Iterable[Buffer]) -> None:
        """Their blocks belong to the copying stream, and what it did to them is over."""
        self._copying().made(buffers)

    def _copying(self) -> StreamLane:
        if self._copies is None:
            self._copies = self._lane(self._calls.stream(), "copying stream")
        return self._copies

    def pin(self, memory: memoryview) -> None:
        """Register an arena for asynchronous copies. Any thread."""
        address = _address(memory)
        if self._calls.register(address, len(memory)):
            self._arenas.add(address)
        else:
            self._shared.staging.say_unpinned(f"not {len(memory)} bytes of a notebook's arena")

    def unpin(self, memory: memoryview) -> None:
        """Undo `pin`."""
        address = _address(memory)
        if address in self._arenas:
            self._arenas.remove(address)
            self._calls.unregister(address)

    def asking(self) -> AbstractContextManager[Any]:
        """As the calls have it."""
        return self._calls.asking()

    def generator(self, seed: int) -> torch.Generator:
        """A generator of the device."""
        return self._calls.generator().manual_seed(seed)

    launches_ahead = True
    reads_directly = False
    tells = True

    def read_now(self, buffer: Buffer, offset: int, target: memoryview) -> None:
        """Never: reads take their place in a lane."""
        raise NotImplementedError

    def give_back(self) -> None:
        """The caching allocator keeps it: the device is ours alone."""

    def close(self) -> None:
        """The process ends, and with it the context."""
        self._shared.staging.close()
        self._wake.close()


def _address(memory: memoryview) -> int:
    return torch.frombuffer(memory, dtype=torch.uint8).data_ptr()
