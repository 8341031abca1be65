"""The `null` device: shapes only. Programs run on meta tensors, downloads give zeros.

For fast tests of everything above a device, and for measuring what the rest costs. Jobs are over
when `submit` returns. It may say that it is of another kind (`ExecutorSettings.poses_as`), so that
what clients do with a GPU can be seen without one.
"""

from collections.abc import Iterable
from time import monotonic_ns, perf_counter
from typing import Final

import torch

from jgpu.broker.executor.devices.base import LaneJob
from jgpu.broker.executor.devices.host import HostDevice, HostPort
from jgpu.broker.executor.programs.buffers import Buffer
from jgpu.broker.executor.programs.kinds import DeviceKind
from jgpu.broker.flightpage import FlightPage, Record
from jgpu.broker.settings import ExecutorSettings
from jgpu.wire.messages import DeviceFacts

__all__ = ["NullDevice"]

_CAPACITY: Final = 16 << 30


class NullDevice(HostDevice, HostPort):
    """Lanes that compute nothing, at once, on the thread that submits."""

    kind: DeviceKind = "null"

    def __init__(self, settings: ExecutorSettings, page: FlightPage | None = None) -> None:
        super().__init__(page)
        self.torch_device = torch.device("meta")
        name = "null (shared)"
        self.facts = DeviceFacts(settings.poses_as, name, settings.capacity or _CAPACITY, 1)
        self._records: dict[int, Record] = {}
        #: of the lane whose job runs
        self.flight = Record.unseen()

    def open_lane(self, lane: int) -> None:
        """Lanes need a place on the page."""
        self._records[lane] = self._page.open(f"lane {lane}")

    def close_lane(self, lane: int) -> None:
        """Lanes leave nothing."""
        self._records.pop(lane).close()

    def does_at_once(self, lane: int, jobs: list[LaneJob]) -> bool:
        """Whatever it is given."""
        return True

    def do_at_once(self, lane: int, jobs: list[LaneJob]) -> None:
        """As ever."""
        self.submit(lane, jobs)

    def submit(self, lane: int, jobs: list[LaneJob]) -> None:
        """Run the jobs."""
        self.flight = self._records[lane]
        for job in jobs:
            begin = perf_counter()
            try:
                job.launch(self)
                job.over_ns = monotonic_ns()
                job.finish()
            except BaseException as error:
                job.broke(error)
            self.flight.rest()
            job.measured_s = perf_counter() - begin
            self._done.append((lane, job))

    def take_back(self, lane: int) -> list[LaneJob]:
        """Jobs are over when `submit` returns."""
        return []

    def completions(self) -> list[tuple[int, LaneJob]]:
        """What was submitted."""
        self._wake.clear()
        return [self._done.popleft() for _ in range(len(self._done))]

    def host_bytes(self, nbytes: int) -> torch.Tensor:
        """Shapes only, here too."""
        return torch.empty(nbytes, dtype=torch.uint8, device="meta")

    def copy_out(self, buffer: Buffer, offset: int, host: torch.Tensor) -> None:
        """There is nothing to copy."""

    def make_room(self, buffer: Buffer) -> None:
        """A storage without memory."""
        buffer.restore(torch.empty(buffer.nbytes, dtype=torch.uint8, device="meta"))

    def copy_in(self, buffer: Buffer, offset: int, host: torch.Tensor) -> None:
        """There is nothing to copy."""

    reads_directly = False
    tells = False

    def read_now(self, buffer: Buffer, offset: int, target: memoryview) -> None:
        """Never: reads take their place in a lane."""
        raise NotImplementedError

    def give_back(self) -> None:
        """There is none."""

    def close(self) -> None:
        """Give the descriptor back."""
        self._wake.close()

    def write(self, target: torch.Tensor, source: memoryview | bytes) -> None:
        """There is nowhere to write to."""

    def read(self, buffer: Buffer, offset: int, target: memoryview) -> None:
        """Zeros."""
        target[:] = bytes(len(target))

    def use(self, buffers: Iterable[Buffer]) -> None:
        """Nothing to wait for."""

    def made(self, buffers: Iterable[Buffer]) -> None:
        """Nothing to note."""

    def owns(self, buffers: Iterable[Buffer]) -> bool:
        """Ops are done when the next one begins."""
        return True

    def retire(self, buffers: Iterable[Buffer]) -> None:
        """Forget them."""
        for buffer in buffers:
            buffer.release()
