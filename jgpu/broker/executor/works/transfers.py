"""Bytes to and from buffers as works.

Invariant: bytes of the arena are the client's until they were copied, and are believed only then.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Final

import torch

from jgpu.broker.executor.devices.base import Port
from jgpu.broker.executor.programs import Buffer, Failure
from jgpu.broker.executor.works.base import (
    LEAST_S,
    Paused,
    ShortOfMemory,
    Work,
    report_failure,
)
from jgpu.broker.flightpage import Kind
from jgpu.errors import ProtocolError
from jgpu.wire import limits, messages

if TYPE_CHECKING:
    from jgpu.broker.executor.programs.running.notes import ValueNote
    from jgpu.broker.executor.session import ExecutorSession

__all__ = ["DownloadWork", "UploadWork", "copy_s"]

#: what a byte takes that is copied, in seconds
_COPY_S: Final = 2e-10
#: why a download has no bytes whose buffer's last writer was taken back
_MISSED: Final = "The computation was interrupted before these bytes were read; read them again."


def copy_s(nbytes: int) -> float:
    """Seconds that a copy takes, at the speed of memory."""
    return LEAST_S + _COPY_S * nbytes


class UploadWork(Work):
    """Host bytes for a buffer."""

    kind = Kind.UPLOAD

    def __init__(self, session: "ExecutorSession", message: messages.Upload) -> None:
        super().__init__(session, message.work, ends_iteration=False)
        self.message = message
        self.nbytes = 64 + len(message.data or b"")
        self.count = message.count if message.data is None else len(message.data)
        self.transient = message.size if message.offset == 0 else 0
        #: position of the arena's ring up to which the bytes are the client's again
        self.position: int | None = None
        if message.offset + self.count > message.size:
            raise ProtocolError("An upload has more bytes than its buffer.")
        if message.data is None:
            session.arena.upload(message.arena, message.count)
            self.position = session.arena.reserve(message.arena, message.count)
        self._failure: Failure | None = None

    def predicted_s(self) -> float:
        """A copy at the speed of memory."""
        return copy_s(self.count)

    def do(self, port: Port) -> None:
        """Make the buffer with the first piece; copy the bytes."""
        message, session = self.message, self.session
        if message.data is None and not port.stage(self._in_arena(), filled=True):
            raise Paused
        buffer = session.table.buffers.get(message.buffer)
        if buffer is not None:
            buffer.proof = None
        if buffer is None or (buffer.poison is not None and self._is_whole):
            if message.offset and not session.lost:
                raise ProtocolError("The first piece of an upload begins at offset 0.")
            buffer = self._make(port)
            known = self._is_whole and buffer.poison is None and message.data
            if session.faults is not None and known:
                buffer.proof = session.faults.notes.proofs.of(known)
        elif buffer.poison is None and buffer.nbytes != message.size:
            raise ProtocolError(
                f"An upload of {message.size} bytes names buffer {message.buffer}, which has "
                f"{buffer.nbytes}."
            )
        if buffer.poison is None and self.count:
            self._copy(buffer, port)

    @property
    def _is_whole(self) -> bool:
        return self.message.offset == 0 and self.count == self.message.size

    def _in_arena(self) -> memoryview:
        return self.session.arena.upload(self.message.arena, self.message.count)

    def _make(self, port: Port) -> Buffer:
        message, session = self.message, self.session
        try:
            if not session.may_use(message.size):
                raise torch.OutOfMemoryError(session.out_of_memory(message.size))
            made = self._allocate()
        except (RuntimeError, MemoryError) as error:
            self._failure = Failure(self.number, 0, "upload", "OutOfMemoryError", str(error))
            made = Buffer(message.buffer, None, 0, poison=self._failure)
        session.put(made, port)
        port.made([made])
        return made

    def _allocate(self) -> Buffer:
        message, session = self.message, self.session
        try:
            if session.device.allocate is not None:
                session.device.allocate(0, message.size)
            # What stood there before is seen by nobody: all of it is overwritten at once.
            make = torch.empty if self._is_whole else torch.zeros
            made = make(message.size, dtype=torch.uint8, device=session.device.torch_device)
            return Buffer(message.buffer, made)
        except (RuntimeError, MemoryError):
            if self.last_try:
                raise
            raise ShortOfMemory(message.size) from None

    def _copy(self, buffer: Buffer, port: Port) -> None:
        message = self.message
        source: memoryview | bytes
        source = self._in_arena() if message.data is None else message.data
        port.use([buffer])
        port.write(buffer.bytes()[message.offset : message.offset + self.count], source)

    def reply(self) -> None:
        """Give the arena's bytes back."""
        if self._failure is not None:
            report_failure(self.session, self._failure, [self.message.buffer])
        if self.position is not None:
            self.session.connection.acknowledge(self.position)

    def may_write(self, buffer: int) -> bool:
        """It writes its one buffer."""
        return buffer == self.message.buffer

    def touches(self) -> Iterable[int]:
        """Its one buffer."""
        return (self.message.buffer,)

    def spread(
        self, tainted: dict[int, Failure], wrong: Mapping[int, "ValueNote"]
    ) -> list[Failure]:
        """A buffer that is written whole is good again."""
        if self._is_whole:
            tainted.pop(self.message.buffer, None)
        return []

    def cancel(self, port: Port, failure: Failure) -> list[int]:
        """Poison the buffer; the bytes are the client's again."""
        super().cancel(port, failure)
        old = self.session.table.poison(self.message.buffer, failure)
        if old is not None:
            port.retire([old])
        self.reply()
        return [self.message.buffer]


class DownloadWork(Work):
    """Bytes of a buffer for the host."""

    kind = Kind.DOWNLOAD
    reads_notes = True

    def __init__(self, session: "ExecutorSession", message: messages.Download) -> None:
        super().__init__(session, message.work, ends_iteration=message.ends_iteration)
        self.message = message
        self._data: bytearray | None = None
        self._failure: Failure | None = None
        if message.arena is not None:
            session.arena.download(message.arena, message.count)
        elif message.count > limits.INLINE_BYTES:
            raise ProtocolError(f"A download of {message.count} bytes needs the arena.")

    @property
    def request(self) -> int | None:
        """Somebody waits for the bytes."""
        return self.message.request

    def predicted_s(self) -> float:
        """A copy at the speed of memory."""
        return copy_s(self.message.count)

    def touches(self) -> Iterable[int]:
        """Its one buffer."""
        return (self.message.buffer,)

    def do(self, port: Port) -> None:
        """Copy the bytes out."""
        message = self.message
        if message.arena is not None and not port.stage(self._target(), filled=False):
            raise Paused

        def read(buffer: Buffer, offset: int, target: memoryview) -> None:
            port.use([buffer])
            port.read(buffer, offset, target)

        self.take(read)

    def take(self, read: Callable[[Buffer, int, memoryview], None]) -> None:
        """Have the bytes copied by `read`, or note why there are none."""
        message = self.message
        buffer = self.session.buffer(message.buffer)
        if buffer.poison is not None:
            self._failure = buffer.poison
            return
        if message.offset + message.count > buffer.nbytes:
            raise ProtocolError(
                f"A download lies past the end of buffer {message.buffer} ({buffer.nbytes} bytes)."
            )
        if message.arena is None:
            self._data = bytearray(message.count)
        if message.count:
            read(buffer, message.offset, self._target())

    def look_again(self, *, missed: bool) -> None:
        """Its bytes were copied, or `missed`; note why they may not be told, where that is so."""
        buffer = self.session.table.buffers.get(self.message.buffer)
        if buffer is not None and buffer.poison is not None:
            self._failure = buffer.poison
        elif missed:
            self._failure = Failure(self.number, 0, "", "WorkCancelled", _MISSED)

    def _target(self) -> memoryview:
        if self._data is not None:
            return memoryview(self._data)
        assert self.message.arena is not None
        return self.session.arena.download(self.message.arena, self.message.count)

    def spread(
        self, tainted: dict[int, Failure], wrong: Mapping[int, "ValueNote"]
    ) -> list[Failure]:
        """What it has copied of a spoiled buffer is no value."""
        self._failure = self._failure or tainted.get(self.message.buffer)
        return []

    def reply(self) -> None:
        """Reply with the bytes, or with what happened to them."""
        if self._failure is not None:
            report_failure(self.session, self._failure, (), self.message.request)
            return
        data = None if self._data is None else bytes(self._data)
        self.session.send(messages.Downloaded(self.message.request, data))
