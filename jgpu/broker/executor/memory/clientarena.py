"""An arena as the executor uses it: the client's shared memory, and how much of it was named."""

import logging

from jgpu.broker.executor.aside import HelperThread
from jgpu.broker.executor.devices.base import Device
from jgpu.wire.arena import Arena

__all__ = ["ClientArena", "PinnedArenas"]

_log = logging.getLogger(__name__)


class ClientArena:
    """One session's shared memory."""

    def __init__(self, arena: Arena) -> None:
        self._arena = arena
        #: upload bytes of the ring that were named so far
        self._position = 0

    @property
    def memory(self) -> memoryview:
        """All of it."""
        return self._arena.memory

    def upload(self, offset: int, count: int) -> memoryview:
        """Bytes of the upload half; `ProtocolError` past its end."""
        return self._arena.upload(offset, count)

    def download(self, offset: int, count: int) -> memoryview:
        """Bytes of the download half; `ProtocolError` past its end."""
        return self._arena.download(offset, count)

    def reserve(self, offset: int, count: int) -> int:
        """The ring's position after this piece: what to tell the client when it was copied."""
        skipped = (offset - self._position) % self._arena.half
        self._position += skipped + count
        return self._position

    def close(self) -> None:
        """Give it back; its descriptor is closed, too."""
        self._arena.close()


class PinnedArenas:
    """Pins arenas for the device, and gives them back, on a thread of its own: both take a while.

    One thread for both: a session that ends at once is not given back before it is pinned.
    """

    def __init__(self, device: Device, thread: HelperThread) -> None:
        self._device = device
        self._thread = thread

    def pin(self, session: int, arena: ClientArena) -> None:
        """Have an arena pinned."""
        self._thread.put(session, lambda: self._device.pin(arena.memory), _log_failure)

    def give_back(self, session: int, arena: ClientArena) -> None:
        """Have an arena unpinned and closed."""

        def give_back() -> None:
            self._device.unpin(arena.memory)
            arena.close()

        self._thread.put(session, give_back, _log_failure)


def _log_failure(result: object) -> None:
    """Nobody waits for it; that it failed is told in the log."""
    if isinstance(result, Exception):
        _log.error("an arena could not be pinned or released", exc_info=result)
