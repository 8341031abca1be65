"""The `cpu` device: real torch CPU kernels, one worker thread per lane.

A job is charged the wall time that it held its lane: the ops of a lane use several threads of
torch's pool, whose time no clock of ours sees, and what a neighbour's lane costs is the scheduler's
affair, which shares out overlapping time.
"""

import os
from time import perf_counter
from typing import Final

import torch

from jgpu.broker.executor.devices import hostmemory
from jgpu.broker.executor.devices.base import LaneJob
from jgpu.broker.executor.devices.host import HostDevice
from jgpu.broker.executor.devices.lanethread import LaneThread, read_now
from jgpu.broker.executor.programs.buffers import Buffer
from jgpu.broker.executor.programs.kinds import DeviceKind
from jgpu.broker.flightpage import FlightPage
from jgpu.broker.settings import ExecutorSettings
from jgpu.wire.messages import DeviceFacts

__all__ = ["CpuDevice"]

#: part of the host's memory that sessions may use together where the settings do not say
_MEMORY_PART: Final = 0.5
#: seconds of jobs that the pump does itself, by experience: where several lanes have had work
#: lately, and where one has had all of it for a while
_BRIEF_S: Final = 0.0001
_BRIEF_ALONE_S: Final = 0.001
_WHILE_S: Final = 0.05


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
        self._lanes: dict[int, LaneThread] = {}
        #: jobs submitted and not told by `completions`
        self._outstanding = 0
        #: something was done at once that is no job, since `completions` told of what is over
        self._ran_here = False
        #: and others are heard before anything else is
        self._others_first = False
        #: the lane that has had all jobs since when, by `perf_counter`
        self._only_lane, self._only_since = -1, 0.0
        # Here, too, some jobs are done, with the same sums.
        torch.set_num_threads(threads)

    def open_lane(self, lane: int) -> None:
        """Start the lane's thread."""
        flight = self._page.open(f"lane {lane}")
        self._lanes[lane] = LaneThread(lane, self.facts.threads, self._done, self._wake, flight)

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
        self._note_lane(lane)
        self._outstanding += len(jobs)

    def does_at_once(self, lane: int, jobs: list[LaneJob]) -> bool:
        """Whether nothing else runs, and all of these together are brief."""
        if self._outstanding != len(self._done):  # what is over and was not told runs no more
            return False
        return _take_at_most(jobs, _BRIEF_ALONE_S if self._has_had_all(lane) else _BRIEF_S)

    def port_at_once(self, lane: int, known_s: float) -> "LaneThread | None":
        """As `does_at_once`, where what is over has been told, too."""
        if self._outstanding or self._others_first or known_s <= 0.0:
            return None
        if known_s > _BRIEF_S and not (known_s <= _BRIEF_ALONE_S and self._has_had_all(lane)):
            return None
        return self._lanes.get(lane)  # it may have closed since it was somebody's last

    def note_at_once(self, lane: int, *, little: bool = False) -> None:
        """It was this lane's; others are heard before the next, unless it was next to nothing."""
        self._ran_here = True
        if not little:
            self._others_first = True
        if lane != self._only_lane:
            self._note_lane(lane)

    def _note_lane(self, lane: int) -> None:
        if lane != self._only_lane:
            self._only_lane, self._only_since = lane, perf_counter()

    def _has_had_all(self, lane: int) -> bool:
        """Whether a lane has had all jobs for a while."""
        return lane == self._only_lane and perf_counter() - self._only_since > _WHILE_S

    def take_back(self, lane: int) -> list[LaneJob]:
        """Take from the lane's thread what it has not begun."""
        taken = self._lanes[lane].take_back()
        self._outstanding -= len(taken)
        return taken

    def completions(self) -> list[tuple[int, LaneJob]]:
        """What the lanes' threads have finished."""
        self._wake.clear()
        self._ran_here = self._others_first = False
        if not self._done:
            return []
        over = [self._done.popleft() for _ in range(len(self._done))]
        self._outstanding -= len(over)
        return over

    def poll_interval_s(self) -> float | None:
        """At once for what was done on the pump's thread; other threads wake the pump."""
        return 0.0 if self._done or self._ran_here else None

    def at_work(self) -> bool:
        """Whether a lane's thread has something to do."""
        return self._outstanding > 0

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
        read_now(buffer, offset, target)

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
