"""One request from a connection that may be anybody's: its frame, its descriptors, no byte more.

What follows the frame belongs to an executor, so bytes are taken exactly. A peer that sends
nothing, garbage or too much costs one socket until the deadline and is dropped.

Invariant: every descriptor that arrives is returned or closed.
"""

import array
import asyncio
import contextlib
import fcntl
import os
import socket
from dataclasses import dataclass
from typing import Final

import msgspec

from jgpu.broker.control.listening.doors import Door
from jgpu.broker.control.listening.identity import Identity, Peer
from jgpu.errors import FrameError, ProtocolError
from jgpu.wire.framing import HEADER, FrameReader, FrameWriter
from jgpu.wire.messages import ControlMessage

__all__ = [
    "MAX_REQUEST_BYTES",
    "Request",
    "Visit",
    "check_arena",
    "close_all",
    "read_request",
    "reply",
]

#: A request holds names and one label; the protocol's own frame limit is for tensor bytes.
MAX_REQUEST_BYTES: Final = 128 << 10
_MAX_DESCRIPTORS: Final = 4
_MAX_ARENA_BYTES: Final = 4 << 30
_SEALED: Final = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW


@dataclass(frozen=True, slots=True)
class Request:
    """A decoded request and the descriptors that came with it, which the receiver now owns."""

    message: ControlMessage
    descriptors: tuple[int, ...]


@dataclass(slots=True)
class Visit:
    """A connection until its request is answered; what no session takes over is closed then."""

    connection: socket.socket
    peer: Peer
    #: that it came by
    door: Door
    #: whose limits it counts for until it says more
    identity: Identity
    descriptors: tuple[int, ...] = ()
    #: a session owns connection and descriptors now
    handed_over: bool = False

    def close(self) -> None:
        """Close what no session took over."""
        if not self.handed_over:
            self.connection.close()
            close_all(self.descriptors)


def close_all(descriptors: "tuple[int, ...] | list[int]") -> None:
    """Close descriptors, whatever they are."""
    for descriptor in descriptors:
        with contextlib.suppress(OSError):
            os.close(descriptor)


def _set_result(future: "asyncio.Future[None]") -> None:
    if not future.done():
        future.set_result(None)


async def _readable(connection: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    future = loop.create_future()
    loop.add_reader(connection.fileno(), _set_result, future)
    try:
        await future
    finally:
        loop.remove_reader(connection.fileno())


def _receive_now(connection: socket.socket, count: int, descriptors: list[int]) -> bytes:
    """`recvmsg` once; descriptors are appended. (`socket.recv_fds` loses its flags in 3.11.)"""
    space = socket.CMSG_LEN(_MAX_DESCRIPTORS * array.array("i").itemsize)
    data, ancillary, _flags, _address = connection.recvmsg(count, space, socket.MSG_CMSG_CLOEXEC)
    for level, kind, raw in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            numbers = array.array("i")
            numbers.frombytes(raw[: len(raw) - len(raw) % numbers.itemsize])
            descriptors.extend(numbers)
    return data


async def _receive_exactly(
    connection: socket.socket, count: int, descriptors: list[int]
) -> bytearray:
    received = bytearray()
    while len(received) < count:
        try:
            data = _receive_now(connection, count - len(received), descriptors)
        except BlockingIOError:
            await _readable(connection)
            continue
        if len(descriptors) > _MAX_DESCRIPTORS:
            raise FrameError(f"{len(descriptors)} descriptors came where one is enough.")
        if not data:
            raise FrameError("The connection ended inside a frame.")
        received += data
    return received


async def read_request(connection: socket.socket) -> Request:
    """The first frame of a non-blocking connection; raises `FrameError` or `OSError`."""
    descriptors: list[int] = []
    try:
        message = await _read_message(connection, descriptors)
    except BaseException:
        close_all(descriptors)
        raise
    return Request(message, tuple(descriptors))


async def _read_message(connection: socket.socket, descriptors: list[int]) -> ControlMessage:
    header = await _receive_exactly(connection, HEADER.size, descriptors)
    length = HEADER.unpack(header)[1]
    reader: FrameReader[ControlMessage] = FrameReader(ControlMessage)
    messages = list(reader.feed(header))
    if length > MAX_REQUEST_BYTES:
        raise FrameError(
            f"A request of {length} bytes is larger than one may be ({MAX_REQUEST_BYTES})."
        )
    messages += reader.feed(await _receive_exactly(connection, length, descriptors))
    if len(messages) != 1:
        raise FrameError("A request's frame must have the number 1.")
    return messages[0]


async def reply(connection: socket.socket, message: msgspec.Struct) -> None:
    """Send the one reply of a request; the caller sets the deadline."""
    frame = FrameWriter().encode(message, 1)
    await asyncio.get_running_loop().sock_sendall(connection, frame)


def check_arena(descriptors: tuple[int, ...], nbytes: int) -> int:
    """The arena's descriptor, after a look at what it is; raises `ProtocolError`.

    Keeping or closing somebody's descriptor must not block, which a file on a network disk could.
    """
    if len(descriptors) != 1:
        raise ProtocolError(
            f"A session opens with the descriptor of its arena; {len(descriptors)} came."
        )
    try:
        seals = fcntl.fcntl(descriptors[0], fcntl.F_GET_SEALS)
        size = os.fstat(descriptors[0]).st_size
    except OSError:
        raise ProtocolError("The arena is not a sealed memory file.") from None
    if seals & _SEALED != _SEALED:
        raise ProtocolError("The arena's size is not sealed.")
    if size != nbytes or not 4096 <= size <= _MAX_ARENA_BYTES:
        raise ProtocolError(f"The arena has {size} bytes where {nbytes} were announced.")
    return descriptors[0]
