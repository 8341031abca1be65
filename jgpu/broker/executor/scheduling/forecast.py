"""What a session's works will need, and what its iterations did need, in bytes.

The core is told, with each work, the ephemeral bytes known beforehand to be alive while it runs:
what the works since the last boundary leave behind, and the program's own peak. At a boundary what
is still there counts as kept, and the count begins anew.
"""

from collections import deque
from collections.abc import Iterable
from typing import Final, TypeAlias

from jgpu.broker.executor.memory.table import BufferTable
from jgpu.broker.executor.programs import Definition, Masks
from jgpu.broker.executor.works.base import Work
from jgpu.broker.executor.works.runs import RunWork
from jgpu.broker.executor.works.transfers import UploadWork
from jgpu.wire import messages

__all__ = ["Forecast"]

#: iterations whose highest transient peak counts
_ITERATIONS: Final = 8
_GRAIN: Final = 64 << 10
_LEAST_GRAIN: Final = 512
#: resident, kept, of both what is away, aside, stale
_Sums: TypeAlias = tuple[int, int, int, int, int, int]


class Forecast:
    """One session's bytes, ahead of what has run."""

    def __init__(self, capacity: int) -> None:
        #: bytes that the core counts in, so that a scalar more or less is no news
        self._grain = max(_LEAST_GRAIN, min(_GRAIN, capacity >> 10))
        #: bytes of buffers that works offered since the last boundary make and nobody dropped
        self._made: dict[int, int] = {}
        #: the sum of them
        self.made_bytes = 0
        self._peak = 0
        self._peaks: deque[int] = deque(maxlen=_ITERATIONS)
        #: peaks of iterations that were offered and have not been measured, oldest first
        self._pending: deque[int] = deque()
        #: bytes of all buffers when they were measured last
        self._used = 0
        self._told: tuple[int, int, int, int, int] | None = None
        #: the table's sums when they were counted last, and what they came to
        self._sums: _Sums | None = None
        self._counted = (0, 0, 0, 0)

    def note_upload(self, buffer: int, nbytes: int) -> int:
        """As `live_bytes`, of an upload without a work, all of a new buffer."""
        live, made = self.made_bytes + nbytes, self._made
        if live > self._peak:
            self._peak = live
        self.made_bytes = live - made.get(buffer, 0)
        made[buffer] = nbytes
        return live

    def note_run(self, message: messages.Run, masks: Masks, surplus_bytes: int) -> int:
        """As `live_bytes`, of a run without a work."""
        if self._made and message.free:
            self._forget(message.free)
        live = self.made_bytes + masks.transient
        if live + surplus_bytes > self._peak:
            self._peak = live + surplus_bytes
        self._note(message.first, masks.made)
        if masks.dead:
            self._forget([message.inputs[k] for k in masks.dead])
        if message.ends_iteration:
            self._end_iteration()
        return live

    def live_bytes(self, work: Work) -> int:
        """Bytes for the work that is offered next; also notes what it leaves behind."""
        if self._made:
            self._forget(work.frees())
        if isinstance(work, RunWork) and isinstance(work.definition, Definition):
            message, definition = work.message, work.definition
            masks = work.masks(definition)
            work.transient = masks.transient
            live = self.made_bytes + work.transient
            if live + definition.surplus_bytes > self._peak:
                self._peak = live + definition.surplus_bytes
            self._note(message.first, masks.made)
            if masks.dead:
                self._forget(work.dead)
        else:
            live = self.made_bytes + work.transient
            if isinstance(work, UploadWork) and work.transient:
                self._note(work.message.buffer, ((0, work.transient),))
        if live > self._peak:
            self._peak = live
        if work.ends_iteration:
            self._end_iteration()
        # What is larger than the whole device waits for nothing: it fails when it is started.
        return live if live <= work.session.account.capacity else 0

    def boundary(self) -> None:
        """The work that was offered last turned out to end an iteration: what stays is kept."""
        self._end_iteration()

    def held(self, table: BufferTable) -> tuple[int, int, int]:
        """(resident, kept, spilled): bytes on the device, and on the host that must come back."""
        return self._count(_sums(table))[:3]

    def measured(
        self, table: BufferTable, *, at_rest: bool
    ) -> tuple[int, int, int, int, int] | None:
        """(resident, kept, transient, stale, spilled) if they are news, at a boundary."""
        if at_rest and self._peak:
            self._end_iteration()
        if self._pending:
            self._settle_peaks(table.resident + table.kept, at_rest=at_rest)
        else:
            self._used = table.resident + table.kept
        sums = _sums(table)
        if sums != self._sums:
            self._sums, self._counted = sums, self._count(sums)
        resident, kept, spilled, stale = self._counted
        now = (resident, kept, max(self._peaks, default=0), stale, spilled)
        if now == self._told:
            return None
        self._told = now
        return now

    def _count(self, sums: _Sums) -> tuple[int, int, int, int]:
        """What a table's sums come to, rounded up: resident, kept, spilled and stale bytes."""
        resident, kept, resident_away, kept_away, aside, stale = sums
        grain = self._grain
        here = -(-(kept - kept_away - aside) // grain) * grain
        return (
            -(-(resident - resident_away) // grain) * grain,
            here,
            -(-(resident_away + kept_away) // grain) * grain,
            min(-(-stale // grain) * grain, here),
        )

    def _end_iteration(self) -> None:
        self._made.clear()
        self.made_bytes = 0
        self._pending.append(self._peak)
        self._peak = 0

    def _settle_peaks(self, used: int, *, at_rest: bool) -> None:
        """An iteration has been measured, or all have: what stays of it was no transient memory."""
        growth, self._used = max(0, used - self._used), used
        while self._pending:
            self._peaks.append(max(0, self._pending.popleft() - growth))
            if not at_rest:
                return

    def _note(self, first: int, sizes: Iterable[tuple[int, int]]) -> None:
        """Buffers, counted from `first`, and the bytes of each."""
        made = self._made
        for place, nbytes in sizes:
            number = first + place
            if number in made:
                self.made_bytes -= made[number]
            self.made_bytes += nbytes
            made[number] = nbytes

    def _forget(self, numbers: Iterable[int]) -> None:
        made = self._made
        for number in numbers:
            if number in made:
                self.made_bytes -= made[number]
                del made[number]


def _sums(table: BufferTable) -> _Sums:
    return (
        table.resident, table.kept, table.resident_away, table.kept_away, table.aside, table.stale
    )  # fmt: skip
