"""A session's buffers by number, and the bytes it is accounted for.

Counted are requested bytes: what the notebook asked for, whatever the allocator makes of it. A
table is changed by one thread at a time: the one that runs the session's work in order, or the
pump while none is in flight.

A spilled buffer counts as it did before; beside that it is counted among what is on the host, as
`away` if it comes back before anything of the session runs, or as `aside`.

Invariant: the sums are those of the buffers, always; `validate` says so.
"""

from collections.abc import Iterable
from typing import Final

from jgpu.broker.executor.programs import Buffer, Failure
from jgpu.broker.executor.programs.buffers import OnHost
from jgpu.wire import limits

__all__ = ["MAX_BUFFERS", "BufferTable"]

#: buffers of one session, poisoned ones included; with more, its client breaks the protocol. In the
#: midst of a run there may be outputs beside inputs that are dropped at its end.
MAX_BUFFERS: Final = limits.MAX_BUFFERS + limits.MAX_SLOTS


class BufferTable:
    """Buffers, and their bytes as resident (P) and kept (K)."""

    def __init__(self) -> None:
        self.buffers: dict[int, Buffer] = {}
        #: sum of `nbytes` of buffers tagged resident
        self.resident = 0
        #: sum of `nbytes` of all others
        self.kept = 0
        #: of both, bytes on the host that come back before anything runs
        self.resident_away = 0
        self.kept_away = 0
        #: bytes on the host that come back when they are named
        self.aside = 0
        #: bytes on the device of ephemeral buffers that nobody is expected to use again
        self.stale = 0
        #: highest `used` ever seen, what runs needed on the way included
        self.peak = 0

    @property
    def used(self) -> int:
        """Bytes of all buffers."""
        return self.resident + self.kept

    @property
    def away(self) -> int:
        """Bytes on the host that come back before anything runs."""
        return self.resident_away + self.kept_away

    @property
    def spilled(self) -> int:
        """All bytes on the host."""
        return self.away + self.aside

    def add(self, buffer: Buffer) -> Buffer | None:
        """Put a buffer in its place; returns the one that was there."""
        old = self.drop(buffer.id)
        self.buffers[buffer.id] = buffer
        self._count(buffer, buffer.nbytes)
        self.note_peak(0)
        return old

    def add_made(self, made: Iterable[Buffer]) -> list[Buffer]:
        """Put ephemeral buffers that were just made in their places; returns those there before."""
        buffers, replaced = self.buffers, []
        for buffer in made:
            if buffer.id in buffers:
                self.note_peak(0)
                replaced += self.drop_all_of((buffer.id,))
            buffers[buffer.id] = buffer
            self.kept += buffer.nbytes
        if (used := self.resident + self.kept) > self.peak:
            self.peak = used
        return replaced

    def poison(self, number: int, failure: Failure) -> Buffer | None:
        """There is nothing in this buffer, and why; returns the one that was there."""
        return self.add(Buffer(number, None, 0, poison=failure))

    def bytes_of(self, numbers: Iterable[int]) -> int:
        """Bytes of the buffers of these numbers; of those that there are."""
        return sum(self.buffers[number].nbytes for number in numbers if number in self.buffers)

    def drop(self, number: int) -> Buffer | None:
        """Take a buffer out; None if there is none."""
        buffer = self.buffers.pop(number, None)
        if buffer is not None:
            self._forget(buffer)
        return buffer

    def drop_some(self, count: int) -> list[Buffer]:
        """Take out so many of the youngest buffers, or all."""
        buffers, dropped = self.buffers, []
        for _ in range(min(count, len(buffers))):
            _, buffer = buffers.popitem()
            self._forget(buffer)
            dropped.append(buffer)
        return dropped

    def drop_all_of(self, numbers: Iterable[int]) -> list[Buffer]:
        """Take these buffers out; numbers without one are skipped."""
        buffers, dropped = self.buffers, []
        for number in numbers:
            if number not in buffers:
                continue
            buffer = buffers[number]
            if buffer.saved is None and not (buffer.resident or buffer.stale):
                del buffers[number]  # as most are: what `drop` comes to
                self.kept -= buffer.nbytes
            else:
                self.drop(number)
            dropped.append(buffer)
        return dropped

    def drop_all(self) -> list[Buffer]:
        """Take all buffers out."""
        dropped = list(self.buffers.values())
        for buffer in dropped:
            if buffer.saved is not None:
                buffer.saved.drop()
                buffer.saved = None
        self.buffers.clear()
        self.resident = self.kept = self.resident_away = self.kept_away = 0
        self.aside = self.stale = 0
        return dropped

    def tag(self, numbers: Iterable[int], *, resident: bool) -> None:
        """Count these buffers as resident, or as kept; numbers without a buffer are skipped."""
        for number in numbers:
            buffer = self.buffers.get(number)
            if buffer is not None and buffer.resident is not resident:
                self._count(buffer, -buffer.nbytes)
                buffer.resident = resident
                self._count(buffer, buffer.nbytes)

    def mark_stale(self, first: int) -> None:
        """Nobody is expected to use the ephemeral buffers from this number on again."""
        for number, buffer in self.buffers.items():
            if number >= first and not buffer.resident and not buffer.stale:
                self._count(buffer, -buffer.nbytes)
                buffer.stale = True
                self._count(buffer, buffer.nbytes)

    def go(self, buffer: Buffer, saved: OnHost, *, aside: bool) -> None:
        """A buffer's bytes are on the host now; the caller frees the others."""
        self._count(buffer, -buffer.nbytes)
        buffer.saved, buffer.aside = saved, aside
        self._count(buffer, buffer.nbytes)

    def want(self, buffer: Buffer) -> None:
        """A buffer that was put aside is to come back before anything runs."""
        self._count(buffer, -buffer.nbytes)
        buffer.aside = buffer.stale = False
        self._count(buffer, buffer.nbytes)

    def come_back(self, buffer: Buffer) -> None:
        """A buffer has its storage on the device again."""
        self._count(buffer, -buffer.nbytes)
        assert buffer.saved is not None
        buffer.saved.drop()
        buffer.saved, buffer.stale = None, False
        self._count(buffer, buffer.nbytes)

    def remeasure(self, buffer: Buffer) -> None:
        """Count a buffer anew that an op may have resized."""
        before = buffer.nbytes
        self._count(buffer, buffer.remeasure() - before)

    def note_peak(self, transient: int) -> None:
        """Something needed `transient` bytes on top of what the buffers hold now."""
        used = self.resident + self.kept + transient
        if used > self.peak:
            self.peak = used

    def _forget(self, buffer: Buffer) -> None:
        """A buffer was taken out."""
        self._count(buffer, -buffer.nbytes)
        if buffer.saved is not None:
            buffer.saved.drop()
            buffer.saved = None

    def _count(self, buffer: Buffer, nbytes: int) -> None:
        away = 0 if buffer.saved is None or buffer.aside else nbytes
        if buffer.resident:
            self.resident += nbytes
            self.resident_away += away
        else:
            self.kept += nbytes
            self.kept_away += away
            if buffer.stale and buffer.saved is None:
                self.stale += nbytes
        if buffer.saved is not None and buffer.aside:
            self.aside += nbytes

    def validate(self) -> None:
        """Check the rule."""
        buffers = self.buffers.values()
        assert self.resident == sum(b.nbytes for b in buffers if b.resident)
        assert self.kept == sum(b.nbytes for b in buffers if not b.resident)
        away = [b for b in buffers if b.saved is not None and not b.aside]
        assert self.resident_away == sum(b.nbytes for b in away if b.resident)
        assert self.kept_away == sum(b.nbytes for b in away if not b.resident)
        assert self.aside == sum(b.nbytes for b in buffers if b.saved is not None and b.aside)
        here = [b for b in buffers if b.saved is None]
        assert self.stale == sum(b.nbytes for b in here if b.stale and not b.resident)
        assert all(number == buffer.id for number, buffer in self.buffers.items())
        assert all(b.base is None and b.poison is None for b in buffers if b.saved is not None)
