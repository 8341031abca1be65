"""An arena as the executor uses it: the client's shared memory, and how much of it was named.

Invariant: positions of the upload half's ring only grow.
"""

from jgpu.wire.arena import Arena

__all__ = ["ClientArena"]


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
