"""What a self-check's client connects to: an executor process, and the little that controls it.

One session, no seats, no users: what the control process does between a kernel's greeting and its
executor, and nothing of the rest. Does not import torch.
"""

import json
import socket
import subprocess
import sys
from array import array
from typing import TYPE_CHECKING, Final

from jgpu.broker.flightpage import FlightPage
from jgpu.errors import ConfigError
from jgpu.wire import messages as m
from jgpu.wire.arena import Arena
from jgpu.wire.framing import FrameReader, FrameWriter

if TYPE_CHECKING:
    from jgpu.device.client.link import Link

__all__ = ["Host"]

_SETTINGS: Final = {"device": "cpu", "lanes": 1, "threads": 1, "capacity": 1 << 28}
_ARENA_BYTES: Final = 1 << 22
_READY_S: Final = 100.0
_TOKEN: Final = bytes(16)


class Host:
    """An executor process; ended with the block."""

    def __init__(self) -> None:
        self._control, theirs = socket.socketpair()
        self._page = FlightPage.create()
        given = (theirs.fileno(), self._page.descriptor)
        command = [sys.executable, "-P", "-m", "jgpu.broker.executor", json.dumps(_SETTINGS)]
        with theirs:
            self._process = subprocess.Popen(
                [*command, *map(str, given)],
                pass_fds=given,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
            )

    def __enter__(self) -> "Host":
        return self

    def __exit__(self, *exc: object) -> None:
        self._process.kill()
        self._process.wait()
        self._control.close()
        self._page.close()

    def wait_until_ready(self) -> None:
        """Raises `ConfigError` with the executor's words if it cannot serve."""
        reader: FrameReader[m.ExecutorNotice] = FrameReader(m.ExecutorNotice)
        self._control.settimeout(_READY_S)
        while data := self._control.recv(1 << 16):
            for notice in reader.feed(data):
                if isinstance(notice, m.ExecutorReady):
                    return
                if isinstance(notice, m.ExecutorFailed):
                    raise ConfigError(notice.text)
        raise ConfigError(f"The executor ended with status {self._process.wait()}.")

    def connect(self) -> "Link":
        """A session's connection, as a broker gives it."""
        from jgpu.device.client.link import Link  # brings torch: the executor's import goes first

        arena = Arena.create(_ARENA_BYTES)
        ours, theirs = socket.socketpair()
        order = m.Adopt(1, "self-check", "", arena.size, _TOKEN)
        rights = array("i", [theirs.fileno(), arena.descriptor])
        with theirs:
            frame = FrameWriter().encode(order, 0)
            self._control.sendmsg([frame], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])
        ours.setblocking(False)
        return Link(ours, arena, m.Welcome(1, "self-check", _TOKEN))
