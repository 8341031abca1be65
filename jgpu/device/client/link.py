"""The connection to the broker: one socket, one arena, frames out, messages in.

Owns the descriptors and nothing of torch. Sending never blocks for good: what the socket does not
take stays queued, and waits are polls that a signal interrupts. Whatever must not be torn by a
signal's handler that raises, be it Ctrl-C's or the user's (a frame half queued, bytes read and not
yet decoded), happens under `quiet`, which puts handlers off for the few microseconds that it takes.

Invariant: an exception, whichever and wherever, leaves the stream whole.
"""

import os
import select
import socket
from collections import deque
from contextlib import suppress
from time import monotonic
from typing import Any

import msgspec

from jgpu import errors
from jgpu.device.interrupts import quiet
from jgpu.wakefulness import Wakefulness
from jgpu.wire import address, asking, limits
from jgpu.wire import messages as m
from jgpu.wire.arena import Arena
from jgpu.wire.framing import FrameReader, FrameWriter, marker

__all__ = ["Link"]


class Link:
    """An open session's connection; raises `DeviceLost` when the other end is gone."""

    def __init__(self, stream: socket.socket, arena: Arena, welcome: m.Welcome) -> None:
        self.arena = arena
        self.welcome = welcome
        self._stream = stream
        self._writer = FrameWriter()
        self._reader: FrameReader[m.ExecutorMessage] = FrameReader(
            m.ExecutorMessage, token=welcome.token, renumber=True
        )
        self._out = bytearray()
        #: messages that arrived and were not dealt with yet, also over an interrupt
        self.inbox: deque[m.ExecutorMessage] = deque()
        #: what a wait is for; two, for one that is changed and back could stay changed
        self._to_read, self._to_read_or_send = select.poll(), select.poll()
        self._to_read.register(stream, select.POLLIN)
        self._to_read_or_send.register(stream, select.POLLIN | select.POLLOUT)
        self._wakefulness = Wakefulness()
        #: bytes sent since the start, for benchmarks
        self.sent = self._sent_before = 0
        #: seconds that this end has waited for the other, and since when it waits now
        self._waited = 0.0
        self._waits_since: float | None = None

    @classmethod
    def open(cls, hello: dict[str, Any], timeout_s: float = 10.0) -> "Link":
        """Connect, introduce this process, and be handed to an executor."""
        where = address.find()
        stream = asking.connect(where, timeout_s)
        arena = Arena.create(limits.ARENA_BYTES)
        try:
            frame = FrameWriter().encode(m.Hello(limits.PROTOCOL, arena=arena.size, **hello), 0)
            with suppress(BrokenPipeError):  # a broker that refuses has said why before it hung up
                sent = socket.send_fds(stream, [frame], [arena.descriptor])
                if sent < len(frame):
                    stream.sendall(frame[sent:])
            welcome = _first_reply(stream, where)
        except OSError as error:
            stream.close()
            arena.close()
            raise errors.BrokerUnreachable(
                f"The broker at {where} broke the connection: {error.strerror or error}."
            ) from None
        except BaseException:
            stream.close()
            arena.close()
            raise
        stream.setblocking(False)
        return cls(stream, arena, welcome)

    def fileno(self) -> int:
        """The socket's descriptor."""
        return self._stream.fileno()

    def close(self) -> None:
        """Close both descriptors; the broker takes that for the session's end."""
        self._stream.close()
        self.arena.close()

    def queue(self, message: msgspec.Struct) -> None:
        """Encode a message behind those already queued; call under `quiet`."""
        self._out += self._writer.encode(message, self._reader.seen)

    def send_now(self) -> bool:
        """Send what the socket takes at once; whether that was all. Call under `quiet`."""
        try:
            count = self._stream.send(self._out)
        except BlockingIOError:
            return False
        except OSError as error:
            raise self._ended(error) from None
        self.sent += count
        if count == len(self._out):
            self._out.clear()
            return True
        del self._out[:count]
        return False

    def flush(self) -> None:
        """Send what is queued, waiting if the socket is full; what arrives meanwhile is kept."""
        while self._out:
            with quiet():
                if self.send_now():
                    break
            # Full: the executor reads no more just now. Listen, too, or both could wait for ever.
            self._wait(self._to_read_or_send, -1.0)
            self.receive()

    def receive(self, timeout_s: float = 0.0) -> None:
        """Put what is there into `inbox`, waiting up to `timeout_s` for the first bytes."""
        if timeout_s and not self._wait(self._to_read, timeout_s * 1000):
            return
        with quiet():
            try:
                data = self._stream.recv(1 << 16)
            except BlockingIOError:
                return
            except OSError as error:
                raise self._ended(error) from None
            if not data:
                raise self._ended(None)
            self.inbox.extend(self._reader.feed(data))
            self._writer.check_acknowledged(self._reader.peer_seen)

    def _wait(self, what_for: select.poll, timeout_ms: float) -> bool:
        """Whether anything came, or could be sent, in time."""
        since = self._waits_since = monotonic()
        try:
            return bool(self._wakefulness.wait(what_for.poll, timeout_ms, self._said(), self._nap))
        finally:
            self._waits_since = None
            self._waited += monotonic() - since

    def _said(self) -> int:
        """Bytes sent since the wait before: programs that repeat say the same at each turn."""
        said, self._sent_before = self.sent - self._sent_before, self.sent
        return said

    def _nap(self, seconds: float) -> None:
        """Sleep, or until one can go on, more exactly than `poll` counts."""
        to_send = (self._stream,) if self._out else ()
        with suppress(ValueError):  # of the notebook's files there are too many
            select.select((self._stream,), to_send, (), seconds)

    @property
    def waited(self) -> float:
        """Seconds that this end has waited for the other so far, a wait of now included."""
        since = self._waits_since
        return self._waited + (monotonic() - since if since is not None else 0.0)

    def _ended(self, error: OSError | None) -> errors.DeviceLost:
        """Why the stream is over: what the broker said last, else what the system says."""
        with suppress(OSError, errors.FrameError):
            while data := self._stream.recv(1 << 16):
                self.inbox.extend(self._reader.feed(data))
        for message in self.inbox:
            if isinstance(message, m.Refused):
                return errors.DeviceLost(f"The broker ended this session: {message.text}")
        why = f" ({os.strerror(error.errno)})" if error is not None and error.errno else ""
        return errors.DeviceLost(f"The connection to the GPU broker ended{why}.")

    def resync(self, epoch: int) -> None:
        """Answer `Resync` with the marker alone: what is queued was for the executor before."""
        with quiet():
            self._out.clear()
            self._out += marker(self.welcome.token, epoch)

    def begin_anew(self) -> None:
        """Number frames from 1 again: the peer is a new executor that knows nothing."""
        self._writer = FrameWriter()
        self.arena.ring.begin_anew()


def _first_reply(stream: socket.socket, where: address.Address) -> m.Welcome:
    """Exactly one frame, and not a byte more: what follows is the executor's."""
    from jgpu.wire.framing import HEADER

    reader: FrameReader[m.ControlReply] = FrameReader(m.ControlReply)
    data = b""
    while len(data) < HEADER.size:
        data += _some(stream, HEADER.size - len(data), where)
    length = HEADER.unpack(data)[1]
    if length > limits.MAX_FRAME_BYTES:
        raise errors.FrameError(f"The broker at {where} does not speak jgpu's protocol.")
    while len(data) < HEADER.size + length:
        data += _some(stream, HEADER.size + length - len(data), where)
    (reply,) = reader.feed(data)
    if isinstance(reply, m.Refused):
        raise asking.refusal(reply)
    if not isinstance(reply, m.Welcome):
        raise errors.FrameError(f"The broker at {where} answered {type(reply).__name__} to Hello.")
    return reply


def _some(stream: socket.socket, count: int, where: address.Address) -> bytes:
    data = stream.recv(count)
    if not data:
        raise errors.BrokerUnreachable(f"The broker at {where} closed the connection unanswered.")
    return data
