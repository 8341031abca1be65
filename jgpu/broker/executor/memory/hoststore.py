"""Bytes of spilled buffers on the host: a bounded pool of memory, then a spool file.

The pool is host memory that the device copies to and from at full speed (pinned, on `cuda`). What
does not fit into it goes to one file in the spool directory, which has no name there and so is
gone with the process. A file system without room is an error of the spill, never of the notebook:
what cannot be stored stays on the device.

Invariant: bytes are given back exactly once, from whatever thread.
"""

import os
import tempfile
from bisect import insort
from collections.abc import Callable
from threading import Lock
from typing import Any, Final, cast

import torch

__all__ = ["HostStore", "Saved"]

#: bytes copied at a time
CHUNK: Final = 32 << 20

#: copies device bytes from an offset to host bytes, or the other way about
Copy = Callable[[int, torch.Tensor], None]


class Saved:
    """The bytes of one buffer; made by `HostStore.save`."""

    __slots__ = ("_chunks", "_extent", "_store", "nbytes")

    def __init__(
        self,
        store: "HostStore",
        nbytes: int,
        chunks: list[torch.Tensor] | None,
        extent: tuple[int, int] | None,
    ) -> None:
        self._store = store
        self.nbytes = nbytes
        #: in the pool; None where they are in the file, or dropped
        self._chunks = chunks
        #: where in the file: offset and bytes
        self._extent = extent

    def load(self, write: Copy) -> None:
        """Have all bytes copied back by `write`, piece by piece."""
        if self._chunks is not None:
            offset = 0
            for chunk in self._chunks:
                write(offset, chunk)
                offset += chunk.numel()
        elif self._extent is not None:
            self._store.read_file(self._extent, write)

    def drop(self) -> None:
        """Give the room back. Any thread; once is enough."""
        chunks, extent, self._chunks, self._extent = self._chunks, self._extent, None, None
        if chunks is not None:
            self._store.give_back_pool(self.nbytes)
        elif extent is not None:
            self._store.give_back_file(extent)


class HostStore:
    """All that one executor has spilled."""

    def __init__(
        self, pool_bytes: int, directory: str, host: Callable[[int], torch.Tensor]
    ) -> None:
        """`host(nbytes)` makes host bytes; an empty `directory` is the system's for such files."""
        self.pool_bytes = pool_bytes
        self._directory = directory or None
        self._host = host
        self._lock = Lock()
        self._in_pool = 0
        self._in_file = 0
        self._file: int | None = None
        #: end of the file's used part, and the gaps before it: (offset, bytes), ascending
        self._end = 0
        self._gaps: list[tuple[int, int]] = []
        self._stage: torch.Tensor | None = None

    def save(self, nbytes: int, read: Copy) -> Saved:
        """Have `nbytes` copied out by `read`, piece by piece. One thread at a time.

        Raises OSError, with nothing kept, where neither the pool nor the file has room.
        """
        with self._lock:
            pooled = self._in_pool + nbytes <= self.pool_bytes
            if pooled:
                self._in_pool += nbytes
        if pooled:
            try:
                return Saved(self, nbytes, self._fill(nbytes, read), None)
            except BaseException:
                self.give_back_pool(nbytes)
                raise
        extent = self._reserve(nbytes)
        try:
            self._write_file(extent, read)
        except BaseException:
            self.give_back_file(extent)
            raise
        return Saved(self, nbytes, None, extent)

    def _fill(self, nbytes: int, read: Copy) -> list[torch.Tensor]:
        chunks = []
        for offset in range(0, nbytes, CHUNK):
            chunk = self._host(min(CHUNK, nbytes - offset))
            read(offset, chunk)
            chunks.append(chunk)
        return chunks

    def give_back_pool(self, nbytes: int) -> None:
        """So many bytes of the pool are free again."""
        with self._lock:
            self._in_pool -= nbytes

    # -- the file ----------------------------------------------------------------------------

    def _reserve(self, nbytes: int) -> tuple[int, int]:
        """Find a place in the file, or make one at its end; OSError where the disk is full."""
        with self._lock:
            if self._file is None:
                with tempfile.TemporaryFile(dir=self._directory) as file:
                    self._file = os.dup(file.fileno())
            for place, (offset, room) in enumerate(self._gaps):
                if room >= nbytes:
                    del self._gaps[place]
                    if room > nbytes:
                        insort(self._gaps, (offset + nbytes, room - nbytes))
                    break
            else:
                offset = self._end
                if nbytes:
                    os.posix_fallocate(self._file, offset, nbytes)
                self._end += nbytes
            self._in_file += nbytes
            return offset, nbytes

    def _write_file(self, extent: tuple[int, int], read: Copy) -> None:
        offset, nbytes = extent
        assert self._file is not None
        for start in range(0, nbytes, CHUNK):
            piece = self._staging(min(CHUNK, nbytes - start))
            read(start, piece)
            view = memoryview(cast("Any", piece.numpy()))
            done = 0
            while done < len(view):
                done += os.pwrite(self._file, view[done:], offset + start + done)

    def read_file(self, extent: tuple[int, int], write: Copy) -> None:
        """Copy an extent of the file back by `write`."""
        offset, nbytes = extent
        assert self._file is not None
        for start in range(0, nbytes, CHUNK):
            piece = self._staging(min(CHUNK, nbytes - start))
            view = memoryview(cast("Any", piece.numpy()))
            done = 0
            while done < len(view):
                count = os.preadv(self._file, [view[done:]], offset + start + done)
                if not count:
                    raise OSError(f"The spool file ends {nbytes - start - done} bytes too early.")
                done += count
            write(start, piece)

    def _staging(self, nbytes: int) -> torch.Tensor:
        if self._stage is None:
            self._stage = self._host(CHUNK)
        return self._stage[:nbytes]

    def give_back_file(self, extent: tuple[int, int]) -> None:
        """An extent of the file is free again; an empty file gives its bytes to the disk."""
        with self._lock:
            insort(self._gaps, extent)
            self._in_file -= extent[1]
            merged: list[tuple[int, int]] = []
            for offset, room in self._gaps:
                if merged and sum(merged[-1]) == offset:
                    merged[-1] = (merged[-1][0], merged[-1][1] + room)
                else:
                    merged.append((offset, room))
            if merged and sum(merged[-1]) == self._end:
                self._end = merged.pop()[0]
                assert self._file is not None
                os.ftruncate(self._file, self._end)
            self._gaps = merged

    def close(self) -> None:
        """The process ends: the file goes."""
        with self._lock:
            if self._file is not None:
                os.close(self._file)
                self._file = None

    def validate(self) -> None:
        """Check what must always hold while no copy is under way."""
        assert 0 <= self._in_pool <= self.pool_bytes
        assert self._in_file == self._end - sum(room for _, room in self._gaps)
        ends = [sum(gap) for gap in self._gaps]
        assert all(end < offset for end, (offset, _) in zip(ends, self._gaps[1:], strict=False))
        assert not ends or ends[-1] < self._end
