"""The `cpu` device: real torch CPU kernels, one worker thread per lane.

A lane's thread takes jobs in order, runs their ops and sends their replies itself, so that a wait
costs one hand-over between threads, not two. A job is charged the wall time that it held its lane:
the ops of a lane use several threads of torch's pool, whose time no clock of ours sees, and what a
neighbour's lane costs is the scheduler's affair, which shares out overlapping time.

Invariant: the number of threads of a lane never changes, or sums change.
"""

import os
from collections import deque
from collections.abc import Iterable
from ctypes import string_at
from queue import SimpleQueue
from threading import Thread
from time import monotonic_ns, perf_counter
from typing import Final

import torch

from jgpu.broker.executor.devices import hostmemory
from jgpu.broker.executor.devices.base import LaneJob
from jgpu.broker.executor.devices.host import HostDevice, HostPort
from jgpu.broker.executor.devices.wake import Wake
from jgpu.broker.executor.programs.buffers import Buffer, release_all
from jgpu.broker.executor.programs.kinds import DeviceKind
from jgpu.broker.flightpage import FlightPage, Record
from jgpu.broker.settings import ExecutorSettings
from jgpu.wire.messages import DeviceFacts

__all__ = ["CpuDevice"]

#: part of the host's memory that sessions may use together where the settings do not say
_MEMORY_PART: Final = 0.5
#: predicted seconds of finished and unreported work after which the pump is woken early
_REPORT_S: Final = 0.0005
#: seconds of jobs that the pump does itself, by experience: where several lanes have had work
#: lately, and where one has had all of it for a while
_BRIEF_S: Final = 0.0001
_BRIEF_ALONE_S: Final = 0.001
_WHILE_S: Final = 0.05
#: bytes that are copied faster than torch is asked to
_FEW_BYTES: Final = 4096


class CpuDevice(HostDevice):
    """Lanes as threads over the host's memory, under an accounted capacity."""

    kind: DeviceKind = "cpu"

    def __init__(self, settings: ExecutorSettings, page: FlightPage | None = None) -> None:
        super().__init__(page)
        hostmemory.keep()
        cores = len(os.sched_getaffinity(0))
        threads = settings.threads or max(1, cores // max(1, settings.lanes))
        capacity = settings.capacity or _part_of_the_host()
        self.torch_device = torch.device("cpu")
        name = f"CPU, {threads} {'thread' if threads == 1 else 'threads'} (shared)"
        self.facts = DeviceFacts("cpu", name, capacity, threads)
        self._lanes: dict[int, _LaneThread] = {}
        #: jobs submitted and not told by `completions`
        self._outstanding = 0
        #: the lane that has had all jobs since when, by `perf_counter`
        self._only_lane, self._only_since = -1, 0.0
        # Here, too, some jobs are done, with the same sums.
        torch.set_num_threads(threads)

    def open_lane(self, lane: int) -> None:
        """Start the lane's thread."""
        flight = self._page.open(f"lane {lane}")
        self._lanes[lane] = _LaneThread(lane, self.facts.threads, self._done, self._wake, flight)

    def close_lane(self, lane: int) -> None:
        """Let the lane's thread end."""
        self._lanes.pop(lane).close()

    def submit(self, lane: int, jobs: list[LaneJob]) -> None:
        """Hand jobs to the lane's thread, in one piece: one hand-over for all of them.

        Where nothing else runs and the jobs are known to be over before a thread would be awake,
        they are done here: a hand-over and the way back cost more, in time and in cold caches. A
        lane that has had the device to itself for a while keeps nobody waiting by somewhat longer
        ones; what comes from others meanwhile is read a millisecond later at most.
        """
        here = self.does_at_once(lane, jobs)
        self._note(lane, jobs)
        if here:
            self._lanes[lane].do_here(jobs)
        else:
            self._lanes[lane].put(jobs)

    def do_at_once(self, lane: int, jobs: list[LaneJob]) -> None:
        """Here, for `does_at_once` has said so."""
        self._note(lane, jobs)
        self._lanes[lane].do_here(jobs)

    def _note(self, lane: int, jobs: list[LaneJob]) -> None:
        if lane != self._only_lane:
            self._only_lane, self._only_since = lane, perf_counter()
        self._outstanding += len(jobs)

    def does_at_once(self, lane: int, jobs: list[LaneJob]) -> bool:
        """Whether nothing else runs, and all of these together are brief."""
        if self._outstanding != len(self._done):  # what is over and was not told runs no more
            return False
        for_long = lane == self._only_lane and perf_counter() - self._only_since > _WHILE_S
        return _take_at_most(jobs, _BRIEF_ALONE_S if for_long else _BRIEF_S)

    def take_back(self, lane: int) -> list[LaneJob]:
        """Take from the lane's thread what it has not begun."""
        taken = self._lanes[lane].take_back()
        self._outstanding -= len(taken)
        return taken

    def completions(self) -> list[tuple[int, LaneJob]]:
        """What the lanes' threads have finished."""
        self._wake.clear()
        if not self._done:
            return []
        over = [self._done.popleft() for _ in range(len(self._done))]
        self._outstanding -= len(over)
        return over

    def host_bytes(self, nbytes: int) -> torch.Tensor:
        """Host memory like any other."""
        return torch.empty(nbytes, dtype=torch.uint8)

    def copy_out(self, buffer: Buffer, offset: int, host: torch.Tensor) -> None:
        """Copy with torch, which leaves the interpreter's lock to others meanwhile."""
        host.copy_(buffer.bytes()[offset : offset + host.numel()])

    def make_room(self, buffer: Buffer) -> None:
        """Memory whose content is about to be copied in."""
        buffer.restore(torch.empty(buffer.nbytes, dtype=torch.uint8))

    def copy_in(self, buffer: Buffer, offset: int, host: torch.Tensor) -> None:
        """The same way back."""
        buffer.bytes()[offset : offset + host.numel()].copy_(host)

    reads_directly = True
    tells = True

    def read_now(self, buffer: Buffer, offset: int, target: memoryview) -> None:
        """Host memory is read where it is."""
        _read(buffer, offset, target)

    def give_back(self) -> None:
        """Freed memory was kept for the next tensor."""
        hostmemory.give_back()

    def close(self) -> None:
        """End the threads."""
        for lane in list(self._lanes):
            self._lanes.pop(lane).close(wait=True)
        self._wake.close()


def _part_of_the_host() -> int:
    import psutil  # of the broker's extra: a kernel's environment has an executor only to try torch

    return int(psutil.virtual_memory().total * _MEMORY_PART)


def _take_at_most(jobs: list[LaneJob], most_s: float) -> bool:
    """Whether all of these together, by experience, take no more than so many seconds."""
    total = 0.0
    for job in jobs:
        known_s = job.known_s()
        total += known_s
        if known_s <= 0 or total > most_s:
            return False
    return True


def _read(buffer: Buffer, offset: int, target: memoryview) -> None:
    """A few bytes by hand, which is what `item()` needs; more of them as in `write`."""
    if len(target) <= _FEW_BYTES and buffer.base is not None:
        address = buffer.base.untyped_storage().data_ptr() + offset
        target[:] = string_at(address, len(target))
        return
    source = buffer.bytes()[offset : offset + len(target)]
    torch.frombuffer(target, dtype=torch.uint8).copy_(source)


class _LaneThread(HostPort):
    """A lane's thread, which is also the port of its jobs."""

    def __init__(
        self,
        number: int,
        threads: int,
        done: deque[tuple[int, LaneJob]],
        wake: Wake,
        flight: Record,
    ) -> None:
        self.flight = flight
        #: jobs not begun, oldest first; the thread takes from the left, nobody puts anything there
        self._jobs: deque[LaneJob] = deque()
        #: True for some jobs more, False to end
        self._tokens: SimpleQueue[bool] = SimpleQueue()
        self._number = number
        self._threads = threads
        self._done = done
        self._wake = wake
        self._closing = False
        self._thread = Thread(target=self._serve, name=f"lane {number}", daemon=True)
        self._thread.start()

    def close(self, *, wait: bool = False) -> None:
        """End the thread after the job that runs; with `wait` return only then."""
        self._closing = True
        self._tokens.put(False)
        if wait:
            self._thread.join(timeout=5)

    def put(self, jobs: list[LaneJob]) -> None:
        """Have jobs done by the thread, after those it has."""
        self._jobs.extend(jobs)
        self._tokens.put(True)

    def take_back(self) -> list[LaneJob]:
        """What the thread has not begun, in order."""
        taken: list[LaneJob] = []
        while self._jobs:
            # From the right, so that what the thread begins meanwhile comes before all of these.
            try:
                taken.append(self._jobs.pop())
            except IndexError:
                break
        return taken[::-1]

    def do_here(self, jobs: list[LaneJob]) -> None:
        """Do jobs on the calling thread; the lane's own has none."""
        for job in jobs:
            self._do(job)
            self._done.append((self._number, job))

    def _serve(self) -> None:
        torch.set_num_threads(self._threads)
        torch.set_grad_enabled(False)
        jobs = self._jobs
        while self._tokens.get() and not self._closing:
            unreported = 0.0
            while jobs:
                try:
                    job = jobs.popleft()
                except IndexError:  # taken back
                    break
                unreported += self._do(job)
                self._done.append((self._number, job))
                if unreported > _REPORT_S:
                    self._wake.signal()
                    unreported = 0.0
            self._wake.signal()
        self.flight.close()

    def _do(self, job: LaneJob) -> float:
        begin = perf_counter()
        try:
            job.launch(self)
            job.over_ns = monotonic_ns()
            job.finish()
        except BaseException as error:
            job.broke(error)
        self.flight.rest()
        job.measured_s = perf_counter() - begin
        return job.measured_s

    # -- the port: everything is done when the call returns, by the one thread ----------------

    def write(self, target: torch.Tensor, source: memoryview | bytes) -> None:
        """Copy with torch, which leaves the interpreter's lock to others meanwhile."""
        writable = source if isinstance(source, memoryview) else bytearray(source)
        target.copy_(torch.frombuffer(writable, dtype=torch.uint8))

    def read(self, buffer: Buffer, offset: int, target: memoryview) -> None:
        """Nothing is in flight."""
        _read(buffer, offset, target)

    def use(self, buffers: Iterable[Buffer]) -> None:
        """Nothing to wait for: a session is in one lane at a time, and lanes work at once."""

    def made(self, buffers: Iterable[Buffer]) -> None:
        """Nothing to note."""

    def owns(self, buffers: Iterable[Buffer]) -> bool:
        """Ops are done when the next one begins."""
        return True

    def retire(self, buffers: Iterable[Buffer]) -> None:
        """The ops are done: the memory can go."""
        release_all(buffers)
