"""Bytes of the host to the device and back.

Small ones travel in the messages, and leave with whatever is sent next. Large ones go through the
arena: uploads through a ring, whose room comes back as the executor copies out; downloads one at a
time, through the other half.
"""

from functools import partial
from typing import Any

from jgpu.device.client.asking import Asker
from jgpu.device.client.connection import BrokerConnection
from jgpu.device.client.outbox import Outbox
from jgpu.device.client.transport import Transport
from jgpu.device.interrupts import quiet
from jgpu.device.recording.cuts.taking import Entry
from jgpu.device.tensor import BufferHandle, new_buffer
from jgpu.wire import limits
from jgpu.wire import messages as m

__all__ = ["Transfers"]

#: how long a full arena is waited for at a time
_FULL_S = 1.0
#: bytes of small uploads that wait for something to leave with
_MOST_RIDING = 64 << 10


class Transfers:
    """Uploads and downloads, in the order of works."""

    def __init__(self, connection: BrokerConnection, outbox: Outbox, asker: Asker) -> None:
        self._connection = connection
        self._outbox = outbox
        self._asker = asker
        #: bytes of small uploads that were queued, and not sent for their own sake
        self._riding = 0

    # -- to the device -----------------------------------------------------------------------

    def upload(self, data: Any, nbytes: int) -> BufferHandle:
        """A new buffer holding a copy of `data` (flat bytes); copied when this returns."""
        outbox = self._outbox
        # No op in the log knows the new buffer, so it may go before them; those that are soon done
        # run with the ones that use it.
        goes_before = nbytes <= limits.INLINE_BYTES and outbox.log.is_brief()
        ran = 0 if goes_before else outbox.cut(send=False)
        link = outbox.open()
        made = new_buffer(nbytes, outbox.buffers.graveyard)
        self._fill(link, made, data, None, at_once=ran > 0)
        return made

    def fill(self, buffer: BufferHandle, data: Any) -> bool:
        """Fill a buffer that the executor does not know yet, in place of what would make it.

        False, and nothing has happened, where something else was recorded of it.
        """
        outbox = self._outbox
        factory = outbox.log.factory_of(buffer)
        if factory is None and (buffer.id or outbox.log.makes(buffer)):
            return False
        ran = outbox.cut(but=factory, send=False)
        link = outbox.open()
        if factory is None:
            buffer.graveyard = outbox.buffers.graveyard
        self._fill(link, buffer, data, factory, at_once=ran > 0)
        return True

    def _fill(
        self,
        link: Transport,
        buffer: BufferHandle,
        data: Any,
        factory: Entry | None,
        *,
        at_once: bool,
    ) -> None:
        """Send a buffer's bytes; with the first of them the executor knows it, and so do we.

        Few bytes are queued to leave with the run that uses them, unless a run that the device can
        begin with is to leave `at_once`.
        """
        connection, offset = self._connection, 0
        generation = connection.generation
        while True:
            with quiet():
                count = self._queue_piece(link, buffer, data, offset, factory)
            if not at_once and self._may_ride(buffer.nbytes):
                return
            connection.pump(link, _FULL_S if count is None else 0.0)
            offset += count or 0
            if offset == buffer.nbytes and count is not None:
                return
            connection.still(link, generation)

    def _may_ride(self, nbytes: int) -> bool:
        """Whether an upload that is queued waits for what is sent next; not too many do."""
        self._riding += nbytes
        if nbytes > limits.INLINE_BYTES or self._riding > _MOST_RIDING:
            self._riding = 0
            return False
        return True

    def _queue_piece(
        self, link: Transport, buffer: BufferHandle, data: Any, offset: int, factory: Entry | None
    ) -> int | None:
        """Queue the next bytes of an upload and return how many; None while the arena is full."""
        nbytes, inline, at = buffer.nbytes, None, 0
        if nbytes <= limits.INLINE_BYTES:
            count, inline = nbytes, bytes(data)
        else:
            ring = link.arena.ring
            count = min(ring.size // 4, nbytes - offset)
            place = ring.reserve(count)
            if place is None:
                return None
            at = place[0]
            link.arena.upload(at, count)[:] = data[offset : offset + count]
        outbox = self._outbox
        if not offset:
            if factory is not None:
                outbox.log.withdraw(factory)
            outbox.log.first_piece()
            outbox.buffers.settle_new(buffer)
        from_arena = 0 if inline is not None else count
        work = outbox.next_work()
        link.queue(m.Upload(work, buffer.id, nbytes, offset, inline, at, from_arena))
        return count

    # -- from the device ---------------------------------------------------------------------

    def take_known(self, buffer: BufferHandle, start: int, target: Any) -> bool:
        """Fill `target` with what is known of a buffer, if it is; sends nothing."""
        buffers, end = self._outbox.buffers, start + len(target)
        if self._connection.link is None or buffer.graveyard is not buffers.graveyard:
            return False  # in a forked child, or of another executor
        known = buffers.reads.at_hand(buffer.id)
        if known is None or end > len(known) or self._outbox.log.may_write(buffer):
            return False
        target[:] = known[start:end]
        return True

    def download(self, buffer: BufferHandle, start: int, target: Any) -> None:
        """Fill `target` (a flat writable memoryview of bytes) from a buffer; waits."""
        count, reads, work = len(target), self._outbox.buffers.reads, self._outbox.work
        if reads.expects(buffer.id):
            told = self._told(buffer.id)
            if told is not None and start + count <= len(told):
                target[:] = told[start : start + count]
                self._keep(buffer, told, work)
                return
        if count <= limits.WANTED_BYTES and self._connection.tells_values:
            reads.was_asked(buffer, self._outbox.runs)
        if count <= limits.INLINE_BYTES:
            reply: m.Downloaded = self._asker.request_ordered(
                lambda work, request: m.Download(work, request, buffer.id, start, count)
            )
            target[:] = reply.data
            if count == buffer.nbytes:
                self._keep(buffer, bytes(target), work + 1)
            return
        self._download_pieces(buffer, start, target)

    def _keep(self, buffer: BufferHandle, data: bytes, work: int) -> None:
        """All that a buffer holds was read, unless something was sent since that `work`.

        A finalizer or a handler of signals may have done so during the wait.
        """
        if self._outbox.work == work:
            self._outbox.buffers.reads.keep(buffer.id, data)

    def _told(self, buffer: int) -> bytes | None:
        """The value of a wanted buffer, when it was told; None if it has to be asked for."""
        reads = self._outbox.buffers.reads
        if reads.told(buffer):  # nothing is waited for: what is queued leaves all the same
            self._connection.pump(self._outbox.open())
        self._asker.wait(partial(reads.told, buffer), self._connection.generation)
        return reads.read(buffer)

    def _download_pieces(self, buffer: BufferHandle, start: int, target: Any) -> None:
        link = self._outbox.open()
        largest = link.arena.size - link.arena.half
        for offset in range(0, len(target), largest):
            self._asker.wait_for_arena()
            count = min(largest, len(target) - offset)
            self._download_piece(buffer.id, start + offset, count)
            target[offset : offset + count] = link.arena.download(0, count)

    def _download_piece(self, buffer: int, start: int, count: int) -> None:
        """Have bytes of a buffer written to the arena."""
        self._asker.request_ordered(
            lambda work, request: m.Download(work, request, buffer, start, count, 0),
            into_arena=True,
        )
