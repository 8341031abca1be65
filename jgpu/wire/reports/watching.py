"""The reader's side of `Watch`: a report that is kept up to date.

`Subscription` turns bytes into reports and owns no socket; `watch` is for programs that wait,
`follow` for those on an asyncio loop. A broker older than `Watch` refuses it: `FrameError`.
"""

import asyncio
import socket
from collections.abc import AsyncGenerator, Iterator
from typing import Final

from jgpu.errors import BrokerUnreachable, FrameError, JgpuError
from jgpu.wire.address import Address
from jgpu.wire.asking import connect, refusal
from jgpu.wire.framing import FrameReader, FrameWriter
from jgpu.wire.messages import ControlReply, Refused, StatusChanged, StatusIs, Watch
from jgpu.wire.reports.changes import apply, decode_changes
from jgpu.wire.reports.report import Report, decode

__all__ = ["Subscription", "follow", "watch"]

_READ_BYTES: Final = 1 << 16


class Subscription:
    """What one connection has told so far: send `request` first, then feed what comes."""

    def __init__(self, where: object = "?") -> None:
        self._where = where
        self._reader: FrameReader[ControlReply] = FrameReader(ControlReply)
        #: the report as it is known; None before the first
        self.report: Report | None = None

    @property
    def request(self) -> bytes:
        """What asks for it."""
        return FrameWriter().encode(Watch(), 0)

    def feed(self, data: bytes) -> Iterator[Report]:
        """The report as it is after each thing that was told.

        Raises what the broker refuses with, and `ProtocolError` for what cannot be understood.
        """
        for reply in self._reader.feed(data):
            if isinstance(reply, Refused):
                raise refusal(reply)
            if isinstance(reply, StatusIs):
                self.report = decode(reply.json, self._where)
            elif isinstance(reply, StatusChanged) and self.report is not None:
                self.report = apply(self.report, decode_changes(reply.json, self._where))
            else:
                raise FrameError(f"A watcher was told {type(reply).__name__}.")
            yield self.report


def watch(
    address: Address, timeout_s: float = 5.0, every_s: float | None = None
) -> Iterator[Report]:
    """The report now, and again after each change, or every so many seconds without one.

    The first is waited for up to `timeout_s`. Raises as `jgpu.wire.asking.ask` does, and
    `BrokerUnreachable` when the broker ends.
    """
    subscription = Subscription(address)
    with connect(address, timeout_s) as stream:
        try:
            stream.sendall(subscription.request)
            while data := _received(stream, subscription.report):
                for report in subscription.feed(data) if isinstance(data, bytes) else (data,):
                    stream.settimeout(every_s)
                    yield report
        except OSError as error:
            raise _explained(error, address, timeout_s) from None
    raise _ended(address)


def _received(stream: socket.socket, known: Report | None) -> bytes | Report:
    """What came; after a while without anything what is known."""
    try:
        return stream.recv(_READ_BYTES)
    except TimeoutError:
        if known is None:
            raise
        return known


async def follow(address: Address, timeout_s: float = 5.0) -> AsyncGenerator[Report, None]:
    """The same on an asyncio loop, which waits for nothing; close the iterator to end it."""
    subscription = Subscription(address)
    stream = await asyncio.to_thread(connect, address, timeout_s)
    reader, writer = await asyncio.open_unix_connection(sock=stream)
    try:
        writer.write(subscription.request)
        while data := await _read(reader, None if subscription.report else timeout_s):
            for report in subscription.feed(data):
                yield report
    except OSError as error:
        raise _explained(error, address, timeout_s) from None
    finally:
        writer.close()
    raise _ended(address)


async def _read(reader: asyncio.StreamReader, timeout_s: float | None) -> bytes:
    async with asyncio.timeout(timeout_s):
        return await reader.read(_READ_BYTES)


def _explained(error: OSError, address: Address, timeout_s: float) -> JgpuError:
    """What the reader is told of what happened to the connection."""
    if isinstance(error, JgpuError):  # some refusals are
        return error
    if isinstance(error, TimeoutError):
        what = f"took the request and gave no answer within {timeout_s:g} s"
    else:
        what = f"broke the connection ({error.strerror})"
    return BrokerUnreachable(f"The broker at {address} {what}.")


def _ended(address: Address) -> BrokerUnreachable:
    return BrokerUnreachable(f"The broker at {address} ended the connection; it may have ended.")
