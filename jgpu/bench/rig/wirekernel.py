"""A kernel's session made of the wire alone: cells that begin and end, and work that is sent."""

import os
import socket
from contextlib import suppress
from typing import Final

from jgpu.errors import BrokerUnreachable
from jgpu.wire import limits
from jgpu.wire.address import Address
from jgpu.wire.arena import Arena
from jgpu.wire.asking import connect, refusal
from jgpu.wire.framing import FrameReader, FrameWriter
from jgpu.wire.messages import (
    CellEnded,
    CellStarted,
    ClientMessage,
    ControlReply,
    ExecutorMessage,
    Free,
    Hello,
    Refused,
    Runtime,
    Upload,
    Welcome,
)

__all__ = ["WireKernel"]

_ARENA: Final = 1 << 20
_NBYTES: Final = 1 << 20


class WireKernel:
    """One session, from its making until it is closed."""

    def __init__(self, address: Address, name: str, torch: str) -> None:
        self.name = name
        self._writer = FrameWriter()
        self._cells = self._works = 0
        self._in_cell = False
        self._socket = connect(address, 15.0)
        hello = Hello(
            protocol=limits.PROTOCOL,
            runtime=Runtime("3.11", torch, ""),
            pid=os.getpid(),
            arena=_ARENA,
            kernel_id=name,
            label=f"class/{name}.ipynb",
        )
        arena = Arena.create(_ARENA)
        frame = FrameWriter().encode(hello, 0)
        socket.send_fds(self._socket, [frame], [arena.descriptor])
        arena.close()
        self._reader: FrameReader[ExecutorMessage] = FrameReader(
            ExecutorMessage, token=self._welcome(), renumber=True
        )
        self._socket.setblocking(False)

    def _welcome(self) -> bytes:
        reader: FrameReader[ControlReply] = FrameReader(ControlReply)
        while data := self._socket.recv(1):  # what follows is the executor's
            for reply in reader.feed(data):
                if isinstance(reply, Refused):
                    raise refusal(reply)
                if isinstance(reply, Welcome):
                    return reply.token
        raise BrokerUnreachable("The broker ended the connection.")

    def turn(self) -> str:
        """Begin a cell, or end it; the cell's name, or nothing."""
        self._in_cell = not self._in_cell
        if not self._in_cell:
            self._send(CellEnded())
            return ""
        self._cells += 1
        self._send(CellStarted(str(self._cells)))
        return str(self._cells)

    def work(self) -> None:
        """Send a tensor, and drop the one before."""
        self._works += 1
        if self._works > 1:
            self._send(Free((self._works - 1,)))
        self._send(Upload(self._works, self._works, _NBYTES, 0, b"x" * 8))
        with suppress(BlockingIOError):
            for _ in self._reader.feed(self._socket.recv(1 << 16)):
                pass  # acknowledgements
        self._writer.check_acknowledged(self._reader.peer_seen)

    def _send(self, message: ClientMessage) -> None:
        self._socket.sendall(self._writer.encode(message, self._reader.seen))

    def close(self) -> None:
        """End, as a process does."""
        self._socket.close()
