"""A lane of the `cpu` device: a thread, which is also the port of its jobs.

It takes jobs in order, runs their ops and sends their replies itself, so that a wait costs one
hand-over between threads, not two.

Invariant: the number of threads of a lane never changes, or sums change.
"""

from collections import deque
from collections.abc import Iterable
from ctypes import string_at
from queue import SimpleQueue
from threading import Thread
from time import monotonic_ns, perf_counter
from typing import Final

import torch

from jgpu.broker.executor.devices.base import LaneJob
from jgpu.broker.executor.devices.host import HostPort
from jgpu.broker.executor.devices.wake import Wake
from jgpu.broker.executor.programs.buffers import Buffer, release_all
from jgpu.broker.flightpage import Record

__all__ = ["LaneThread", "read_now"]

#: predicted seconds of finished and unreported work after which the pump is woken early
_REPORT_S: Final = 0.0005
#: bytes that are copied faster than torch is asked to
_FEW_BYTES: Final = 4096


def read_now(buffer: Buffer, offset: int, target: memoryview) -> None:
    """A few bytes by hand, which is what `item()` needs; more of them as in `write`."""
    if len(target) <= _FEW_BYTES and buffer.base is not None:
        address = buffer.base.untyped_storage().data_ptr() + offset
        target[:] = string_at(address, len(target))
        return
    source = buffer.bytes()[offset : offset + len(target)]
    torch.frombuffer(target, dtype=torch.uint8).copy_(source)


class LaneThread(HostPort):
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
        """Do jobs on the calling thread, the pump's; the lane's own has none."""
        self.stoppable = False
        for job in jobs:
            self._do(job)
            self._done.append((self._number, job))
        self.stoppable = True

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
        read_now(buffer, offset, target)

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
