"""The private socket pair between control process and one executor: frames, with descriptors.

Descriptors leave in the same `sendmsg` as the first byte of their frame, and are duplicated until
they have left, so that a session ended meanwhile cannot turn a number into somebody else's file.
Neither side ever resumes this stream: an executor that ends takes it along.
"""

import array
import asyncio
import errno
import os
import socket
from collections import deque
from collections.abc import Callable
from typing import Final

import msgspec

from jgpu.broker.control.listening.handshake import close_all
from jgpu.errors import FrameError
from jgpu.wire.framing import FrameReader, FrameWriter
from jgpu.wire.messages import ExecutorNotice

__all__ = ["ExecutorChannel"]

_RECEIVE_BYTES: Final = 256 << 10
#: Frames that wait for an executor that does not read.
_STUCK: Final = 1024
#: Too many descriptors on their way; the executor takes some within this time.
_RETRY_S: Final = 0.01


class ExecutorChannel:
    """The control process's end. `on_closed` gets "" at end of stream, or what was wrong."""

    def __init__(
        self,
        connection: socket.socket,
        on_notice: Callable[[ExecutorNotice], None],
        on_closed: Callable[[str], None],
    ) -> None:
        connection.setblocking(False)
        self._loop = asyncio.get_running_loop()
        self._connection = connection
        self._on_notice = on_notice
        self._on_closed = on_closed
        self._reader: FrameReader[ExecutorNotice] = FrameReader(ExecutorNotice)
        self._writer = FrameWriter()
        #: frames not yet sent whole, each with the descriptors that go with its first byte
        self._outgoing: deque[tuple[memoryview, list[int]]] = deque()
        self._writing = False
        self.closed = False
        self._loop.add_reader(connection.fileno(), self._receive)

    @property
    def is_stuck(self) -> bool:
        """So many frames wait that the executor cannot be reading."""
        return len(self._outgoing) >= _STUCK

    @property
    def waits(self) -> bool:
        """Frames wait for the executor to read those before them."""
        return bool(self._outgoing)

    def send(self, message: msgspec.Struct, descriptors: tuple[int, ...] = ()) -> None:
        """Queue a message; a no-op on a closed channel. Raises `OSError` out of descriptors."""
        if self.closed:
            return
        copies: list[int] = []
        try:
            for descriptor in descriptors:
                copies.append(os.dup(descriptor))  # noqa: PERF401 - all made so far are closed
            frame = self._writer.encode(message, self._reader.seen)
        except BaseException:
            close_all(copies)
            raise
        self._outgoing.append((memoryview(frame), copies))
        if not self._writing:
            self._flush()

    def close(self) -> None:
        """Close without telling `on_closed`."""
        if self.closed:
            return
        self.closed = True
        self._loop.remove_reader(self._connection.fileno())
        self._loop.remove_writer(self._connection.fileno())
        self._connection.close()
        while self._outgoing:
            close_all(self._outgoing.popleft()[1])

    def drain(self) -> None:
        """Read what has arrived from a process that ended, up to the end of the stream."""
        while not self.closed and self._receive():
            pass

    def _flush(self) -> None:
        if self.closed:
            return
        self._stop_writing()
        while self._outgoing:
            data, descriptors = self._outgoing[0]
            ancillary = (
                [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))]
                if descriptors
                else []
            )
            try:
                sent = self._connection.sendmsg([data], ancillary, socket.MSG_NOSIGNAL)
            except BlockingIOError:
                self._writing = True
                self._loop.add_writer(self._connection.fileno(), self._flush)
                return
            except OSError as error:
                if error.errno == errno.ETOOMANYREFS:
                    self._writing = True
                    self._loop.call_later(_RETRY_S, self._flush)
                else:
                    self._fail("")
                return
            close_all(descriptors)
            if sent < len(data):
                self._outgoing[0] = (data[sent:], [])
            else:
                self._outgoing.popleft()

    def _stop_writing(self) -> None:
        if self._writing:
            self._writing = False
            self._loop.remove_writer(self._connection.fileno())

    def _receive(self) -> bool:
        """One read; False if there was nothing more."""
        try:
            data = self._connection.recv(_RECEIVE_BYTES)
        except BlockingIOError:
            return False
        except OSError:
            data = b""
        if not data:
            self._fail("")
            return False
        try:
            for notice in self._reader.feed(data):
                self._on_notice(notice)
                if self.closed:
                    return False
        except FrameError as error:
            self._fail(str(error))
        return True

    def _fail(self, reason: str) -> None:
        if not self.closed:
            self.close()
            self._on_closed(reason)
