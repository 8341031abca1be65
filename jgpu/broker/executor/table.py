"""A session's buffers by number, and the bytes it is accounted for.

Counted are requested bytes: what the notebook asked for, whatever the allocator makes of it. A
table is changed by one thread at a time: the one that runs the session's work in order, or the
pump while none is in flight.

The rule that must not be broken: the sums are those of the buffers, always; `validate` says so.
"""

from collections.abc import Iterable

from jgpu.broker.executor.programs import Buffer, Failure

__all__ = ["BufferTable"]


class BufferTable:
    """Buffers, and their bytes as resident (P) and kept (K)."""

    def __init__(self) -> None:
        self.buffers: dict[int, Buffer] = {}
        #: sum of `nbytes` of buffers tagged resident
        self.resident = 0
        #: sum of `nbytes` of all others
        self.kept = 0
        #: highest `used` ever seen, what runs needed on the way included
        self.peak = 0

    @property
    def used(self) -> int:
        """Bytes of all buffers."""
        return self.resident + self.kept

    def add(self, buffer: Buffer) -> Buffer | None:
        """Put a buffer in its place; returns the one that was there."""
        old = self.drop(buffer.id)
        self.buffers[buffer.id] = buffer
        self._count(buffer, buffer.nbytes)
        self.note_peak(0)
        return old

    def poison(self, number: int, failure: Failure) -> Buffer | None:
        """There is nothing in this buffer, and why; returns the one that was there."""
        return self.add(Buffer(number, None, 0, poison=failure))

    def drop(self, number: int) -> Buffer | None:
        """Take a buffer out; None if there is none."""
        buffer = self.buffers.pop(number, None)
        if buffer is not None:
            self._count(buffer, -buffer.nbytes)
        return buffer

    def drop_all(self) -> list[Buffer]:
        """Take all buffers out."""
        dropped = list(self.buffers.values())
        self.buffers.clear()
        self.resident = self.kept = 0
        return dropped

    def tag(self, numbers: Iterable[int], *, resident: bool) -> None:
        """Count these buffers as resident, or as kept; numbers without a buffer are skipped."""
        for number in numbers:
            buffer = self.buffers.get(number)
            if buffer is not None and buffer.resident is not resident:
                self._count(buffer, -buffer.nbytes)
                buffer.resident = resident
                self._count(buffer, buffer.nbytes)

    def remeasure(self, buffer: Buffer) -> None:
        """Count a buffer anew that an op may have resized."""
        before = buffer.nbytes
        self._count(buffer, buffer.remeasure() - before)

    def note_peak(self, transient: int) -> None:
        """Something needed `transient` bytes on top of what the buffers hold now."""
        self.peak = max(self.peak, self.used + transient)

    def _count(self, buffer: Buffer, nbytes: int) -> None:
        if buffer.resident:
            self.resident += nbytes
        else:
            self.kept += nbytes

    def validate(self) -> None:
        """Check the rule."""
        buffers = self.buffers.values()
        assert self.resident == sum(b.nbytes for b in buffers if b.resident)
        assert self.kept == sum(b.nbytes for b in buffers if not b.resident)
        assert all(number == buffer.id for number, buffer in self.buffers.items())
