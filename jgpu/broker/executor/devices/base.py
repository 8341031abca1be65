"""What the pump needs of a device: lanes that take jobs, and jobs that are over.

Launching is asynchronous by interface: `submit` returns at once, `completions` tells what is
over. On `cuda` the stream does the waiting and the pump launches; on `cpu` a worker thread per lane
does both. Either way a job's `launch` and `finish` run once each, in this order, and the jobs of a
lane one after another. Where a launch would keep the pump waiting the job is put aside, and its
`launch` called again.

Nothing here blocks the thread that calls it.
"""

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import Any, Protocol

import torch

from jgpu.broker.executor.programs.buffers import Buffer
from jgpu.broker.executor.programs.checking.guards import Mender
from jgpu.broker.executor.programs.kinds import DeviceKind
from jgpu.broker.flightpage import Record
from jgpu.wire.messages import DeviceFacts

__all__ = ["Device", "LaneJob", "Port"]


class Port(Protocol):
    """A lane as a running job sees it: where bytes come from, and whose buffers it uses."""

    #: where a job notes what it is; the device notes when it is over
    flight: Record
    #: whether another thread than the one that does a job may stop it between two ops
    stoppable: bool

    def write(self, target: torch.Tensor, source: memoryview | bytes) -> None:
        """Copy host bytes to `target` (uint8, on the device) before the job is over."""

    def read(self, buffer: Buffer, offset: int, target: memoryview) -> None:
        """Copy bytes of a buffer from `offset` to host memory before the job is over."""

    def use(self, buffers: Iterable[Buffer]) -> None:
        """The ops that follow read or write these buffers."""

    def made(self, buffers: Iterable[Buffer]) -> None:
        """The ops before made these buffers."""

    def owns(self, buffers: Iterable[Buffer]) -> bool:
        """Whether a job may drop these buffers while it runs."""

    def retire(self, buffers: Iterable[Buffer]) -> None:
        """Nobody needs these buffers; give their memory back when this lane is through."""

    def tell(self, storage: torch.UntypedStorage, then: Callable[[bytes], None]) -> bool:
        """Call `then` with the bytes of a small storage when the ops before are over.

        False where that cannot be had now. `then` runs on the thread that finishes jobs.
        """

    def stage(self, host: memoryview, *, filled: bool) -> bool:
        """Whether `write` from these bytes (`filled`), or `read` to them, takes next to no time.

        Where it does, the job returns; it is launched again when they are ready.
        """

    def pauses(self, done: int, *, waits: bool) -> bool:
        """Whether a job that has launched `done` ops is to return before its next op.

        It is launched again when it may go on. `waits`: the op waits for all that is on the lane.
        """

    def put_aside(self, until: Callable[[], bool]) -> None:
        """Launch the job, which returns now, again when `until()` holds."""


class LaneJob(Protocol):
    """One piece of work for one lane."""

    #: seconds that the lane was held; set by the device when the job is over
    measured_s: float
    #: when the device was through with it, on the host's monotonic clock; set before `finish`
    over_ns: int

    def known_s(self) -> float:
        """Seconds that the lane will be held; 0 unless it did the very same before."""

    def launch(self, port: Port) -> None:
        """Do the ops, or enqueue them; called again where the port was told to put it aside."""

    def finish(self) -> None:
        """The device is through with the job: reply."""

    def broke(self, error: BaseException) -> None:
        """`launch` or `finish` raised, which they must not."""


class Device(Protocol):
    """A device of one kind, with lanes."""

    #: what its programs can count on is said of its kind
    kind: DeviceKind

    #: where tensors live: "cpu", "cuda:0" or "meta"
    torch_device: torch.device
    facts: DeviceFacts
    #: becomes readable when `completions` has something; an eventfd, to be watched for edges
    wake_fd: int

    def open_lane(self, lane: int) -> None:
        """Make lane number `lane` ready for jobs."""

    def close_lane(self, lane: int) -> None:
        """No job will be submitted to the lane any more; all are over."""

    def submit(self, lane: int, jobs: list[LaneJob]) -> None:
        """Put jobs at the end of a lane."""

    def do_at_once(self, lane: int, jobs: list[LaneJob]) -> None:
        """`submit` of what `does_at_once` was just asked about, and said so."""
        self.submit(lane, jobs)

    def does_at_once(self, lane: int, jobs: list[LaneJob]) -> bool:
        """Whether these, submitted now, would be over when `submit` returns."""

    def port_at_once(self, lane: int, known_s: float) -> Port | None:
        """The port by which the caller may do what takes so long by experience, if it may.

        Nothing else is on the device then. It is no job; `note_at_once` says that it was done.
        """

    def note_at_once(self, lane: int, *, little: bool = False) -> None:
        """Something was done so, in the place of a lane's job.

        No more is before `completions`, unless it was next to nothing (`little`).
        """

    def take_back(self, lane: int) -> list[LaneJob]:
        """Take from a lane the jobs of which it has begun nothing, in order; it never will."""

    def completions(self) -> list[tuple[int, LaneJob]]:
        """(lane, job) of what is over since the last call, in order within a lane."""

    def wake(self) -> None:
        """Make `wake_fd` readable. Any thread."""

    def poll_interval_s(self) -> float | None:
        """Ask for completions again after this time; None: `wake_fd` will tell."""

    def at_work(self) -> bool:
        """Whether a thread of its own does something that `completions` has not told of."""

    def discard(self, buffers: Iterable[Buffer]) -> None:
        """Give back the memory of buffers whose session has nothing in flight."""

    def host_bytes(self, nbytes: int) -> torch.Tensor:
        """Host memory (uint8) that copies to and from the device are fast with. Any thread."""

    def leaving(self, buffers: Iterable[Buffer]) -> None:
        """These, whose session has nothing in flight, are copied out next; `discard` follows."""

    def copy_out(self, buffer: Buffer, offset: int, host: torch.Tensor) -> None:
        """Copy bytes of a buffer that is `leaving`; over when it returns. The copying thread."""

    def make_room(self, buffer: Buffer) -> None:
        """Give a buffer that has none a storage again. The copying thread.

        Raises `torch.OutOfMemoryError` or RuntimeError as torch does.
        """

    def copy_in(self, buffer: Buffer, offset: int, host: torch.Tensor) -> None:
        """Copy bytes to a buffer; over when it returns. The copying thread."""

    def arrived(self, buffers: Iterable[Buffer]) -> None:
        """These were copied in; lanes may use them."""

    def pin(self, memory: memoryview) -> None:
        """Prepare an arena for copies to and from the device; may take long. Any thread."""

    def unpin(self, memory: memoryview) -> None:
        """Undo `pin`. Any thread."""

    def asking(self) -> AbstractContextManager[Any]:
        """Around ops on scratch tensors that are asked what they return. Any thread."""

    def generator(self, seed: int) -> torch.Generator:
        """A new random number generator of the device."""

    #: whether a job's ops go on after its launch returned, which therefore must not wait for any
    launches_ahead: bool

    #: whether ports `tell`
    tells: bool

    #: whether `read_now` may be called: the host reads the device's memory itself
    reads_directly: bool

    def read_now(self, buffer: Buffer, offset: int, target: memoryview) -> None:
        """Copy bytes of a buffer that nothing in flight writes. Any thread."""

    #: called before each op that makes storages with (op index, bytes); what raises
    #: `torch.OutOfMemoryError` there is an allocation that fails. None, but in tests.
    allocate: Callable[[int, int], None] | None

    #: begins to watch the allocator, as `RunContext.watch_peak`; None where it keeps no statistics
    watch_peak: Callable[[], Callable[[int], int]] | None

    #: replaces wrong indices in one launch; None where ops of torch do it
    mender: Mender | None

    def give_back(self) -> None:
        """All sessions rest: give memory that was freed and kept back to the machine."""

    def close(self) -> None:
        """End all lanes; a job that runs is waited for, those behind it are not run."""
