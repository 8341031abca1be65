"""Sessions that have ended and hold very many buffers, which are freed a part in each round.

A million buffers take a second to free; the pump has other sessions to hear meanwhile. The core
counts their memory as free from the session's end on, as it does where all is freed at once.
"""

from typing import TYPE_CHECKING

from jgpu.broker.executor.works.hostonly import FREED_AT_ONCE, MANY

if TYPE_CHECKING:
    from collections.abc import Iterator

    from jgpu.broker.executor.devices.base import Device
    from jgpu.broker.executor.session import ExecutorSession

__all__ = ["Emptying"]


class Emptying:
    """All such sessions, by number."""

    def __init__(self, device: "Device") -> None:
        self._device = device
        self._sessions: dict[int, ExecutorSession] = {}

    def __bool__(self) -> bool:
        return bool(self._sessions)

    def takes(self, session: "ExecutorSession") -> bool:
        """Whether a session that has ended, with nothing in flight, is to be emptied first."""
        if len(session.table.buffers) <= MANY:
            return False
        self._sessions[session.number] = session
        return True

    def free_some(self) -> "Iterator[ExecutorSession]":
        """Free a part of one session's buffers; the session, where few are left."""
        for number, session in self._sessions.items():
            self._device.discard(session.table.drop_some(FREED_AT_ONCE))
            if len(session.table.buffers) <= MANY:
                del self._sessions[number]
                yield session
            return
