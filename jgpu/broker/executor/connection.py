"""One framed, non-blocking stream: to a client, or to the control process.

Covers reading (bounded per turn), writing (buffered, bounded), acknowledgements, and finding the
place where a stream begins anew after another executor had it. It decides nothing about messages.

No call here ever waits. A peer that does not read what it is sent is broken, and loses its stream;
nobody else notices.

`send` may be called from any thread; everything else belongs to the pump.
"""

import contextlib
import socket
import struct
from collections import deque
from collections.abc import Callable, Iterator
from threading import Lock
from typing import Any, Final, Generic, TypeVar

import msgspec

from jgpu.wire.framing import HEADER, FrameReader, FrameWriter, marker
from jgpu.wire.messages import Ack

__all__ = ["Connection"]

M = TypeVar("M")

#: bytes read from one stream in one turn of the pump
_READ_BYTES: Final = 128 << 10
#: bytes that may wait for a peer that does not read
_UNSENT_BYTES: Final = 32 << 20
#: frames, and bytes, received since the last acknowledgement that make a pure one due
_ACK_FRAMES: Final = 32
_ACK_BYTES: Final = 256 << 10
#: most descriptors that come beside one read
_DESCRIPTORS: Final = 16
_INT: Final = struct.Struct("i")


class Connection(Generic[M]):
    """Messages of `union` in, messages out, on a socket that is never waited for."""

    def __init__(
        self,
        sock: socket.socket,
        union: Any,
        *,
        token: bytes = b"",
        epoch: int = 0,
        on_blocked: Callable[[], None] = lambda: None,
    ) -> None:
        sock.setblocking(False)
        self.socket = sock
        self.reader: FrameReader[M] = FrameReader(union)
        self._writer = FrameWriter()
        #: what marks where the stream begins anew, in both directions; empty where it does not
        self._own_marker = marker(token, epoch) if epoch else b""
        #: bytes of the marker that must come before the first frame, empty once it came
        self._marker = self._own_marker
        self._hunted = bytearray()
        self._lock = Lock()
        self._unsent: deque[memoryview] = deque()
        #: sum of the lengths in `_unsent`
        self.unsent_bytes = 0
        self._on_blocked = on_blocked
        #: number of the peer's last frame that a frame of ours acknowledged; <= reader.seen
        self._acknowledged = 0
        self._bytes_since_ack = 0
        #: bytes of the last read
        self.received = 0
        #: why the stream cannot be used any more, or None
        self.broken: str | None = None
        self.ended = False
        #: messages read and not yet dealt with
        self.inbox: Iterator[M] | None = None
        #: descriptor events that the pump waits for
        self.mask = 0
        #: descriptors that came beside the frames, oldest first (the control's stream alone)
        self.descriptors: deque[int] = deque()

    def fileno(self) -> int:
        """The socket's descriptor."""
        return self.socket.fileno()

    # -- reading -----------------------------------------------------------------------------

    def receive(self) -> Iterator[M]:
        """Messages in what the socket holds now, at most one read; sets `ended` at the end."""
        try:
            data = self.socket.recv(_READ_BYTES)
        except (BlockingIOError, InterruptedError):
            return iter(())
        except OSError:
            data = b""
        self.received = len(data)
        if self._marker or not data:
            return self._decode(data)
        self._bytes_since_ack += len(data)
        return self.reader.feed(data)

    def receive_with_descriptors(self) -> Iterator[M]:
        """Like `receive`, keeping descriptors that came along in `descriptors`."""
        try:
            data, ancillary, _, _ = self.socket.recvmsg(
                _READ_BYTES, socket.CMSG_SPACE(_DESCRIPTORS * _INT.size), socket.MSG_CMSG_CLOEXEC
            )
        except (BlockingIOError, InterruptedError):
            return iter(())
        except OSError:
            data, ancillary = b"", []
        for level, kind, payload in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                usable = len(payload) - len(payload) % _INT.size
                self.descriptors.extend(fd for (fd,) in _INT.iter_unpack(payload[:usable]))
        return self._decode(data)

    def _decode(self, data: bytes) -> Iterator[M]:
        if not data:
            self.ended = True
            return iter(())
        self._bytes_since_ack += len(data)
        if self._marker:
            data = self._hunt(data)
        return self.reader.feed(data) if data else iter(())

    def _hunt(self, data: bytes) -> bytes:
        """What follows the marker; the first frame after it says where its numbers begin.

        The executor that read this stream before is gone, and with it the number of the last
        frame that it had seen.
        """
        self._hunted += data
        at = self._hunted.find(self._marker)
        if at < 0:
            del self._hunted[: max(0, len(self._hunted) - len(self._marker) + 1)]
            return b""
        start = at + len(self._marker)
        if len(self._hunted) - start < HEADER.size:
            del self._hunted[:at]
            return b""
        _, _, sequence, _, _ = HEADER.unpack_from(self._hunted, start)
        self.reader.seen = self._acknowledged = max(0, sequence - 1)
        rest = bytes(memoryview(self._hunted)[start:])
        self._marker, self._hunted = b"", bytearray()
        return rest

    def check_acknowledgement(self) -> None:
        """Raises `FrameError` if the peer acknowledged what it was never sent."""
        if self.reader.peer_seen > self._writer.sequence:  # as never
            self._writer.check_acknowledged(self.reader.peer_seen)

    # -- writing -----------------------------------------------------------------------------

    def send(self, message: msgspec.Struct) -> None:
        """Write a message now, or as soon as the socket takes it. Any thread."""
        with self._lock:
            seen = self.reader.seen
            frame = self._writer.encode(message, seen)
            self._acknowledged, self._bytes_since_ack = seen, 0
            if self.broken or self.ended:
                return
            sent = 0 if self._unsent else self._try_send(frame)
            if sent < len(frame):
                self._put_off(frame, sent)

    def begin_anew(self) -> None:
        """Tell the peer where the frames of a new executor begin."""
        with self._lock:
            self._put_off(self._own_marker, 0)
        self.flush()

    def acknowledge(self, arena: int | None = None) -> None:
        """A pure `Ack` if `arena` bytes were given back, or enough went unacknowledged."""
        frames = self.reader.seen - self._acknowledged
        if arena is not None or (
            frames and (frames >= _ACK_FRAMES or self._bytes_since_ack >= _ACK_BYTES)
        ):
            self.send(Ack(arena or 0))

    def _put_off(self, frame: bytes, sent: int) -> None:
        """The socket has taken so many bytes of a frame; the rest waits."""
        self._unsent.append(memoryview(frame)[sent:])
        self.unsent_bytes += len(frame) - sent
        if self.unsent_bytes > _UNSENT_BYTES:
            self.broken = "The client does not read what it is sent."
        self._on_blocked()

    def _try_send(self, data: bytes | memoryview) -> int:
        try:
            return self.socket.send(data, socket.MSG_NOSIGNAL)
        except (BlockingIOError, InterruptedError):
            return 0
        except OSError:
            self.ended = True
            return 0

    def flush(self) -> bool:
        """Write what waits; True when nothing waits any more."""
        with self._lock:
            while self._unsent and not self.ended:
                first = self._unsent[0]
                sent = self._try_send(first)
                if not sent:
                    break
                self.unsent_bytes -= sent
                if sent == len(first):
                    self._unsent.popleft()
                else:
                    self._unsent[0] = first[sent:]
            return not self._unsent

    def close(self, *, hang_up: bool = True) -> None:
        """Close; with `hang_up` the peer sees the end even where others hold the descriptor."""
        with self._lock:
            self.ended = True
            self._unsent.clear()
            if hang_up:
                with contextlib.suppress(OSError):
                    self.socket.shutdown(socket.SHUT_RDWR)
            self.socket.close()
