"""Takes the connections that come by a broker's doors, while doors open and close.

A socket that somebody removed, as cleaners of /tmp do, is made again within a second.

Invariant: a socket is closed only when nobody waits for a connection on it; its number would be
deaf for whoever gets it next.
"""

import asyncio
import errno
import logging
import socket
from collections.abc import Callable, Iterable
from typing import Final

from jgpu.broker.control.listening.doors import Door
from jgpu.errors import ConfigError

__all__ = ["Doorkeeper"]

_LOG = logging.getLogger("jgpu.broker")
_ACCEPT_PAUSE_S: Final = 0.1
#: between two looks whether the sockets are still where they were made
_LOOK_S: Final = 1.0


class Doorkeeper:
    """Keeps the doors that it is given, from `run` until that is cancelled."""

    def __init__(self, doors: Iterable[Door], take: Callable[[socket.socket, Door], None]) -> None:
        """`take` is given each connection and the door that it came by; it must not raise."""
        self._take = take
        #: who waits at each door; None before `run`
        self._waiting: dict[Door, asyncio.Task[None] | None] = dict.fromkeys(doors)
        #: doors that cannot be made again, for which that was said
        self._told: set[Door] = set()

    @property
    def doors(self) -> tuple[Door, ...]:
        """Those that are open."""
        return tuple(self._waiting)

    def keeps(self, door: Door) -> bool:
        """Whether this one is open."""
        return door in self._waiting

    async def run(self) -> None:
        """Until cancelled; the doors are closed then."""
        try:
            for door, task in list(self._waiting.items()):
                if task is None:
                    self._wait_at(door)
            while True:
                await asyncio.sleep(_LOOK_S)
                for door in self.doors:
                    if door in self._waiting and door.listener.is_gone:
                        await self._renew(door)
        finally:
            for door in self.doors:
                await self.close(door)

    def open(self, door: Door) -> None:
        """One more door; on the loop that `run` is, or will be, on."""
        self._wait_at(door)

    async def close(self, door: Door) -> None:
        """Take nobody any more who comes by it; does nothing to those who did. Repeatable."""
        await _end(self._waiting.pop(door, None))
        self._told.discard(door)
        door.listener.close()

    def _wait_at(self, door: Door) -> None:
        self._waiting[door] = asyncio.create_task(self._accept(door))

    async def _renew(self, door: Door) -> None:
        await _end(self._waiting[door])
        if door not in self._waiting:
            return  # closed meanwhile
        try:
            door.listener.renew()
            _LOG.warning("The socket %s was gone, and is there again.", door.listener.path)
            self._told.discard(door)
        except ConfigError as error:
            if door not in self._told:
                _LOG.error("A socket is gone and cannot be made again. %s", error)
            self._told.add(door)
        self._wait_at(door)

    async def _accept(self, door: Door) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                connection, _ = await loop.sock_accept(door.listener.socket)
            except OSError as error:
                # Out of descriptors, or a connection that was gone before it was taken.
                if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS):
                    _LOG.warning("No connection can be taken: %s.", error.strerror)
                await asyncio.sleep(_ACCEPT_PAUSE_S)
                continue
            self._take(connection, door)


async def _end(task: asyncio.Task[None] | None) -> None:
    if task is not None:
        task.cancel()
        await asyncio.wait([task])
