"""The cells of a session, as far as the executor knows of them.

Covers what the report shows of them, and which buffers are garbage: what a failed cell made is
used by nobody any more, mostly.
"""

from dataclasses import dataclass, field

from jgpu.broker.executor.works.celltimes import CellDeviceTimes

__all__ = ["SessionCells"]


@dataclass(slots=True)
class SessionCells:
    """One session's."""

    #: the cell that its notebook is at, empty between two
    running: str = ""
    #: device time by cell
    times: CellDeviceTimes = field(default_factory=CellDeviceTimes)
    #: number of the first buffer that the running cell makes; None before it makes any
    first_buffer: int | None = None
    #: number of the first buffer that a failed cell can have made, until they are marked
    failed_from: int | None = None

    def begin(self, label: str, after: int) -> None:
        """A cell begins behind the work of that number."""
        self.running = label
        self.times.begin(label, after)

    def end(self) -> None:
        """The notebook's cell is over, be its works or not."""
        self.running = ""

    def note_made(self, buffer: int) -> None:
        """A work came that makes buffers from this number on; numbers grow."""
        if self.first_buffer is None:
            self.first_buffer = buffer

    def forget_buffers(self) -> None:
        """A cell begins, and has made nothing."""
        self.first_buffer = None

    def fail(self) -> None:
        """The cell failed: what it made is garbage, behind what an earlier one left of it."""
        if self.failed_from is None:
            self.failed_from = self.first_buffer
