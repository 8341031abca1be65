"""Notices at once when a process ends, by pidfd; by looking into /proc where there is none.

Not by end of stream: forked workers hold a socket open long after their kernel is gone.
"""

import asyncio
import contextlib
import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Final

__all__ = ["ProcessWatch", "pidfd_of_peer"]

#: SO_PEERPIDFD (Linux 6.5): names the process that connected even if its pid was used again.
_SO_PEERPIDFD: Final = 77
_POLL_INTERVAL_S: Final = 0.25


def pidfd_of_peer(connection: socket.socket, pid: int) -> int | None:
    """A pidfd of the process that connected; None where it cannot be had."""
    with contextlib.suppress(OSError):
        descriptor = connection.getsockopt(socket.SOL_SOCKET, _SO_PEERPIDFD)
        os.set_inheritable(descriptor, False)
        return descriptor
    return _pidfd(pid)


def _pidfd(pid: int) -> int | None:
    if pid <= 0:
        return None
    try:
        return os.pidfd_open(pid)
    except OSError:
        return None


def _start_time(pid: int) -> str | None:
    """When the process started, in ticks, so that a pid used again is not taken for it."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (OSError, ValueError):
        return None
    return None if fields[0] in ("Z", "X") else fields[19]


class ProcessWatch:
    """Calls `on_exit` once when the process ends, unless `stop`ped before.

    With neither pidfd nor a pid (a foreign pid namespace) nothing is watched: end of stream, which
    the executor sees, must do.
    """

    def __init__(
        self, pid: int, on_exit: Callable[[], None], descriptor: int | None = None
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._on_exit: Callable[[], None] | None = on_exit
        self._pid = pid
        self._descriptor = descriptor
        self._timer: asyncio.Handle | None = None
        if descriptor is not None:
            self._loop.add_reader(descriptor, self._exited)
        elif pid > 0:
            self._started = _start_time(pid)
            self._timer = self._loop.call_soon(self._look)

    @classmethod
    def of_peer(
        cls, connection: socket.socket, pid: int, on_exit: Callable[[], None]
    ) -> "ProcessWatch":
        """Watch the process that connected."""
        return cls(pid, on_exit, pidfd_of_peer(connection, pid))

    @classmethod
    def of_child(cls, pid: int, on_exit: Callable[[], None]) -> "ProcessWatch":
        """Watch a process of our own."""
        return cls(pid, on_exit, _pidfd(pid))

    def stop(self) -> None:
        """Watch no more; harmless when repeated."""
        self._on_exit = None
        if self._descriptor is not None:
            self._loop.remove_reader(self._descriptor)
            os.close(self._descriptor)
            self._descriptor = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look(self) -> None:
        if self._started is None or _start_time(self._pid) != self._started:
            self._exited()
        else:
            self._timer = self._loop.call_later(_POLL_INTERVAL_S, self._look)

    def _exited(self) -> None:
        on_exit = self._on_exit
        self.stop()
        if on_exit is not None:
            on_exit()
