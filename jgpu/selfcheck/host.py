"""What a self-check's client connects to: an executor process, and the little that controls it.

One session, no seats, no users: what the control process does between a kernel's greeting and its
executor, and nothing of the rest. The executor is a fork of the client, whose torch it shares: most
of what a check costs is torch's import.
"""

import gc
import json
import os
import signal
import socket
import traceback
from array import array
from typing import Final, NoReturn

from jgpu.broker.executor import process
from jgpu.broker.flightpage import FlightPage
from jgpu.device import current
from jgpu.device.client.link import Link
from jgpu.errors import ConfigError
from jgpu.wire import messages as m
from jgpu.wire.arena import Arena
from jgpu.wire.framing import FrameReader, FrameWriter

__all__ = ["Host"]

_SETTINGS: Final = {"device": "cpu", "lanes": 1, "threads": 1, "capacity": 1 << 28}
_ARENA_BYTES: Final = 1 << 22
_READY_S: Final = 100.0
_TOKEN: Final = bytes(16)


class Host:
    """An executor process; ended with the block. To be made before there are threads."""

    def __init__(self) -> None:
        self._control, theirs = socket.socketpair()
        self._page = FlightPage.create()
        current.warm()
        gc.freeze()
        with theirs:
            self._executor = os.fork()
            if not self._executor:
                self._control.close()
                _serve(theirs.fileno(), self._page.descriptor)

    def __enter__(self) -> "Host":
        return self

    def __exit__(self, *exc: object) -> None:
        if self._executor:
            os.kill(self._executor, signal.SIGKILL)
            self._wait()
        self._control.close()
        self._page.close()

    def _wait(self) -> int:
        """How the executor ended: its status, or minus the signal."""
        ended, self._executor = self._executor, 0
        return os.waitstatus_to_exitcode(os.waitpid(ended, 0)[1])

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
        raise ConfigError(f"The executor ended with status {self._wait()}.")

    def connect(self) -> Link:
        """A session's connection, as a broker gives it."""
        arena = Arena.create(_ARENA_BYTES)
        ours, theirs = socket.socketpair()
        order = m.Adopt(1, "self-check", "", arena.size, _TOKEN)
        rights = array("i", [theirs.fileno(), arena.descriptor])
        with theirs:
            frame = FrameWriter().encode(order, 0)
            self._control.sendmsg([frame], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])
        ours.setblocking(False)
        return Link(ours, arena, m.Welcome(1, "self-check", _TOKEN))


def _serve(control: int, page: int) -> NoReturn:
    """Be the executor, of which the client's output is none of the business."""
    status = 1
    try:
        nothing = os.open(os.devnull, os.O_RDWR)
        os.dup2(nothing, 0)
        os.dup2(nothing, 1)
        status = process.main([json.dumps(_SETTINGS), str(control), str(page)])
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(status)
