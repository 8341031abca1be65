"""The arena: sealed shared memory through which tensor bytes travel beside the socket.

The client makes a memory file, seals its size and passes the descriptor over the Unix socket, so
that it works between containers that share nothing but the socket. The first half carries uploads
as a ring (`Ring`), the second half downloads, one at a time per request.

Invariant: the executor maps nothing whose size can still change (a shrunk mapping kills its
reader), and believes no byte before it has copied it.
"""

import fcntl
import mmap
import os
from typing import Final

from jgpu.errors import ProtocolError
from jgpu.wire import limits

__all__ = ["Arena", "Ring"]

_SEALS: Final = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
_MAX_BYTES: Final = 4 << 30


class Ring:
    """Ring allocation over `size` bytes: positions grow for ever, space returns in order."""

    def __init__(self, size: int) -> None:
        self.size = size
        #: total bytes ever reserved, skipped ones included; the head of the ring
        self.reserved = 0
        #: total bytes given back; `reserved - released` never exceeds `size`
        self.released = 0

    def reserve(self, count: int) -> tuple[int, int] | None:
        """(offset, position to give back up to) for `count` contiguous bytes, or None if full.

        An empty ring has room for anything up to its size.
        """
        offset = self.reserved % self.size
        skip = self.size - offset if offset + count > self.size else 0
        # What is skipped before anything is in use is nobody's.
        released = self.released + (skip if self.released == self.reserved else 0)
        if self.reserved + skip + count - released > self.size:
            return None
        self.reserved += skip + count
        self.released = released
        return (0 if skip else offset), self.reserved

    def release(self, position: int) -> None:
        """Everything reserved up to `position` may be written again."""
        self.released = max(self.released, min(position, self.reserved))

    def begin_anew(self) -> None:
        """Whoever reads what is reserved here is another one, who has seen nothing yet."""
        self.reserved = self.released = 0


class Arena:
    """One session's shared memory; `upload` and `download` are its halves as memoryviews."""

    def __init__(self, descriptor: int, size: int) -> None:
        self.descriptor = descriptor
        self.size = size
        self._map = mmap.mmap(descriptor, size)
        self.memory = memoryview(self._map)
        #: where the download half begins
        self.half = size // 2
        self.ring = Ring(self.half)

    @classmethod
    def create(cls, size: int = limits.ARENA_BYTES) -> "Arena":
        """A new sealed memory file of `size` bytes (untouched pages cost nothing)."""
        descriptor = os.memfd_create("jgpu-arena", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(descriptor, size)
            fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, _SEALS)
            return cls(descriptor, size)
        except BaseException:
            os.close(descriptor)
            raise

    @classmethod
    def adopt(cls, descriptor: int, size: int) -> "Arena":
        """Map a descriptor that came from a client, after checking seals and size."""
        try:
            seals = fcntl.fcntl(descriptor, fcntl.F_GET_SEALS)
            actual = os.fstat(descriptor).st_size
        except OSError:
            raise ProtocolError("The arena is not a sealed memory file.") from None
        if seals & (fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW) != (
            fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW
        ):
            raise ProtocolError("The arena's size is not sealed.")
        if actual != size or not 4096 <= size <= _MAX_BYTES:
            raise ProtocolError(f"The arena has {actual} bytes where {size} were announced.")
        try:
            return cls(descriptor, size)
        except OSError as error:  # sealed against writing, opened for reading alone, ...
            raise ProtocolError(f"The arena cannot be mapped ({error.strerror}).") from None

    def upload(self, offset: int, count: int) -> memoryview:
        """`count` bytes of the upload half; raises `ProtocolError` past its end."""
        if offset + count > self.half:
            raise ProtocolError("An upload lies past the end of the arena's upload half.")
        return self.memory[offset : offset + count]

    def download(self, offset: int, count: int) -> memoryview:
        """`count` bytes of the download half; raises `ProtocolError` past its end."""
        if offset + count > self.size - self.half:
            raise ProtocolError("A download lies past the end of the arena's download half.")
        start = self.half + offset
        return self.memory[start : start + count]

    def close(self) -> None:
        """Unmap and close; views handed out must be gone, else the mapping stays until they are."""
        os.close(self.descriptor)
        try:
            self.memory.release()
            self._map.close()
        except BufferError:
            pass
