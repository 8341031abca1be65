"""Frames on a byte stream: length, sequence number, acknowledgement, checksum, payload.

Sans-I/O: `FrameWriter` turns messages into bytes; `FrameReader` turns bytes, cut anywhere, into
messages. Neither owns a socket, a clock or a lock, and neither keeps what was sent.

A stream that a dead executor had half read, or half written, is begun anew at a marker: the
session's secret token and an epoch. What was on its way before it is lost.

Invariant: a message is delivered once, in order, or the stream fails loudly.
"""

import struct
from collections.abc import Iterator
from typing import Any, Final, Generic, TypeVar
from zlib import crc32

import msgspec

from jgpu.errors import FrameError
from jgpu.wire import limits

__all__ = ["HEADER", "MAGIC", "FrameReader", "FrameWriter", "marker"]

#: magic, payload length, sequence number, highest sequence number seen from the peer, CRC-32.
HEADER: Final = struct.Struct("!4sIQQI")
MAGIC: Final = b"jgp1"
_HEADER_BYTES: Final = HEADER.size
# Plain, for every frame asks.
_header_of: Final = HEADER.unpack_from
_header: Final = HEADER.pack
_MOST_BYTES: Final = limits.MAX_FRAME_BYTES
_NO_FRAME: Final = "These bytes are not a jgpu frame."
_MARKER: Final = struct.Struct("!4s16sQ")
_MARKER_MAGIC: Final = b"jgpR"
#: what decoding raises
_UNREADABLE: Final = (msgspec.MsgspecError, RecursionError, UnicodeDecodeError)
_encode: Final = msgspec.msgpack.Encoder().encode

M = TypeVar("M")


def marker(token: bytes, epoch: int) -> bytes:
    """The bytes at which a stream begins anew; `token` is the session's 16-byte secret."""
    return _MARKER.pack(_MARKER_MAGIC, token, epoch)


class FrameWriter:
    """Numbers and encodes the frames of one direction of one connection."""

    def __init__(self) -> None:
        #: number of the last frame written; frames are numbered from 1 without gaps
        self.sequence = 0

    def encode(self, message: msgspec.Struct, seen: int) -> bytes:
        """The next frame, acknowledging the peer's frames up to `seen`."""
        payload = _encode(message)
        length = len(payload)
        if length > _MOST_BYTES:
            raise FrameError(
                f"A {type(message).__name__} of {length} bytes is larger than a frame may be "
                f"({_MOST_BYTES})."
            )
        self.sequence += 1
        return _header(MAGIC, length, self.sequence, seen, crc32(payload)) + payload

    def check_acknowledged(self, sequence: int) -> None:
        """The peer says that it has everything up to `sequence`: raises if that was never sent."""
        if sequence > self.sequence:
            raise FrameError(f"Frame {sequence} was acknowledged but never sent.")


class FrameReader(Generic[M]):
    """Decodes the frames of one direction of one connection into messages of `union`.

    With `renumber` a marker means a new peer (a client's executor), whose frames start at 1.
    """

    def __init__(self, union: Any, *, token: bytes = b"", renumber: bool = False) -> None:
        self._decoder: msgspec.msgpack.Decoder[M] = msgspec.msgpack.Decoder(union)
        #: bytes of frames whose messages were not asked for, and of half a frame
        self.held = bytearray()
        self._token = token
        self._renumber = renumber
        #: highest epoch whose marker was seen
        self.epoch = 0
        #: number of the last message delivered; the next new frame has `seen + 1`
        self.seen = 0
        #: highest acknowledgement in the peer's frames, for our writer to check
        self.peer_seen = 0

    def feed(self, data: bytes | bytearray | memoryview) -> Iterator[M]:
        """Messages completed by `data`; raises `FrameError` at the first byte that is no frame.

        The bytes are taken at once, the messages decoded as they are asked for.
        """
        self.held += data
        if self._token and _MARKER_MAGIC in self.held:
            self._find_marker()
        return self._messages()

    def _messages(self) -> Iterator[M]:
        buffer, decode = self.held, self._decoder.decode
        while buffer:
            message = None
            if (held := len(buffer)) >= _HEADER_BYTES:
                # As nearly always: the frame is whole, and the one that is due.
                magic, length, sequence, seen, checksum = _header_of(buffer)
                end = _HEADER_BYTES + length
                is_due = sequence == self.seen + 1 and magic == MAGIC
                if is_due and end <= held and length <= _MOST_BYTES:
                    payload = buffer[_HEADER_BYTES:end]
                    if crc32(payload) == checksum:
                        try:
                            message = decode(payload)
                        except _UNREADABLE as error:
                            raise _unreadable(error) from None
                        del buffer[:end]
                        self.seen = sequence
                        if seen > self.peer_seen:
                            self.peer_seen = seen
            if message is None and (message := self._take()) is None:
                return
            yield message

    def at_boundary(self) -> bool:
        """No half frame is held: the stream may end here."""
        return not self.held

    def _find_marker(self) -> None:
        """Cut the buffer after the newest marker that is due; frames before it are dropped."""
        start = 0
        while (at := self.held.find(_MARKER_MAGIC, start)) >= 0:
            if len(self.held) - at < _MARKER.size:
                return
            _, token, epoch = _MARKER.unpack_from(self.held, at)
            if token == self._token and epoch > self.epoch:
                del self.held[: at + _MARKER.size]
                self.epoch, start = epoch, 0
                if self._renumber:
                    self.seen = self.peer_seen = 0
            else:
                start = at + 1

    def _take(self) -> M | None:
        """The next message, whatever comes before it; what is wrong is told here."""
        while True:
            try:
                frame = self._next_frame()
            except FrameError:
                if self._ends_in_a_marker():
                    return None  # an older writer's half frame, cut short by a marker
                raise
            if frame is None:
                return None
            sequence, seen, payload = frame
            if sequence <= self.seen:
                continue  # a frame is heard once, however often it comes
            if sequence != self.seen + 1:
                raise FrameError(f"Frame {sequence} came where {self.seen + 1} was due.")
            message = self._decode(payload)
            self.seen = sequence
            self.peer_seen = max(self.peer_seen, seen)
            return message

    def _next_frame(self) -> tuple[int, int, bytes] | None:
        """Sequence number, acknowledgement and payload of the next whole frame, taken out."""
        held = len(self.held)
        if held < _HEADER_BYTES:
            if not MAGIC.startswith(bytes(self.held[: len(MAGIC)])):
                raise FrameError(_NO_FRAME)
            return None
        magic, length, sequence, seen, checksum = HEADER.unpack_from(self.held)
        if magic != MAGIC:
            raise FrameError(_NO_FRAME)
        if length > limits.MAX_FRAME_BYTES:
            raise FrameError(
                f"A frame of {length} bytes is larger than a frame may be "
                f"({limits.MAX_FRAME_BYTES})."
            )
        end = _HEADER_BYTES + length
        if held < end:
            return None
        payload = bytes(memoryview(self.held)[_HEADER_BYTES:end])
        if crc32(payload) != checksum:
            raise FrameError("A frame's checksum does not match its bytes.")
        del self.held[:end]
        return sequence, seen, payload

    def _ends_in_a_marker(self) -> bool:
        """The last bytes held may be the beginning of this session's marker."""
        if not self._token:
            return False
        known = _MARKER_MAGIC + self._token
        tail = bytes(self.held[-_MARKER.size + 1 :])
        return any(
            tail[start:].startswith(known) or known.startswith(tail[start:])
            for start in range(len(tail))
        )

    def _decode(self, payload: bytes) -> M:
        try:
            return self._decoder.decode(payload)
        except _UNREADABLE as error:
            raise _unreadable(error) from None


def _unreadable(error: Exception) -> FrameError:
    return FrameError(f"A frame holds no message that is known here: {error}.")
