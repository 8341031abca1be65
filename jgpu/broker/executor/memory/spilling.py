"""Copies buffers of sessions to the host and back, as the core asks for.

A copy takes its time on a thread of its own; until it is over nothing of its session runs, and
everybody else's work goes on. What cannot be stored on the host stays on the device; what cannot be
brought back for want of memory is asked for again; what cannot be read is lost, and says so.

Invariant: a buffer has its storage, is saved, or says why not, and its bytes are the same before
and after.
"""

import logging
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

import torch

from jgpu.broker.executor.aside import HelperThread
from jgpu.broker.executor.devices.base import Device
from jgpu.broker.executor.memory.hoststore import HostStore, Saved
from jgpu.broker.executor.memory.movement import MovementState
from jgpu.broker.executor.programs import Buffer, Failure
from jgpu.broker.executor.session import ExecutorSession
from jgpu.broker.executor.works.base import Work
from jgpu.broker.executor.works.runs import RunWork
from jgpu.broker.executor.works.transfers import DownloadWork, UploadWork
from jgpu.broker.flightpage import Kind, Record
from jgpu.sched import MemoryPart

__all__ = ["UNREADABLE", "SpillCopier", "names_of"]

_log = logging.getLogger(__name__)

#: why a buffer holds nothing whose bytes on the host are gone
UNREADABLE: Final = Failure(
    0, 0, "", "DeviceLost",
    "This tensor was kept in the spool file, which cannot be read; make the tensor again, and have "
    "the disk of the broker's spool directory looked at.",
)  # fmt: skip


class CopiedBack(NamedTuple):
    """What came of copying back."""

    back: list[Buffer]
    unreadable: list[Buffer]


def names_of(work: Work) -> Iterable[int]:
    """Numbers of the buffers that a work reads or writes and did not make."""
    if isinstance(work, RunWork):
        return work.message.inputs
    if isinstance(work, DownloadWork | UploadWork):
        return (work.message.buffer,)
    return ()


class SpillCopier:
    """Moves what sessions hold between the device and the host."""

    def __init__(
        self,
        device: Device,
        store: HostStore,
        wake: Callable[[], None],
        flight: Record | None = None,
    ) -> None:
        self._device = device
        self._store = store
        self._thread = HelperThread("copies", wake, Kind.COPY, flight)
        #: whether the last spill found no room on the host
        self._full = False
        #: told when the copies of a session, which were asked for, are over
        self.on_spilled: Callable[[ExecutorSession], None] = lambda session: None
        self.on_restored: Callable[[ExecutorSession], None] = lambda session: None
        #: told how many bytes of a session went to the host, or came back (below 0)
        self.on_moved: Callable[[ExecutorSession, int], None] = lambda session, nbytes: None

    def collect(self) -> None:
        """Deal with copies that are over."""
        if self._thread.results_due:
            self._thread.collect()

    def close(self) -> None:
        """End the thread; sessions have ended."""
        self._thread.close()
        self._store.close()

    # -- to the host -------------------------------------------------------------------------

    def spill(self, session: ExecutorSession, part: MemoryPart) -> None:
        """Copy a part of what a session holds to the host; nothing of it is in flight."""
        assert session.queue.launched == 0, "the core spills at boundaries"
        buffers = _chosen(session, part)
        session.movement.become(MovementState.LEAVING)
        self._device.leaving(buffers)

        def over(result: list[Saved] | Exception) -> None:
            self._spilled(session, buffers, result)

        self._thread.put(session.number, lambda: self._save_all(session, buffers), over)

    def _save_all(self, session: ExecutorSession, buffers: list[Buffer]) -> list[Saved]:
        saved: list[Saved] = []
        try:
            for buffer in buffers:
                if session.life.is_over:
                    break
                saved.append(self._save(buffer))
        except BaseException:
            for each in saved:
                each.drop()
            raise
        return saved

    def _save(self, buffer: Buffer) -> Saved:
        def read(offset: int, host: torch.Tensor) -> None:
            self._device.copy_out(buffer, offset, host)

        return self._store.save(buffer.nbytes, read)

    def _spilled(
        self, session: ExecutorSession, buffers: list[Buffer], result: list[Saved] | Exception
    ) -> None:
        session.movement.become(MovementState.STILL)
        if isinstance(result, Exception):
            self._say_full(result)
        else:
            self._full = False
            # Of a session that has ended there may be fewer: all of it goes.
            for buffer, saved in zip(buffers, result, strict=not session.life.is_over):
                session.table.go(buffer, saved, aside=buffer.stale and not buffer.resident)
            self._device.discard(buffers)
            self.on_moved(session, sum(saved.nbytes for saved in result))
            self.want(session, session.queue.offered)
        self.on_spilled(session)

    def _say_full(self, error: Exception) -> None:
        if not self._full:
            _log.error(
                "Memory of idle sessions cannot be kept on the host: %s. It stays on the device, "
                "and others wait for it; make room in the spool directory or raise the pool.",
                error,
            )
        self._full = True

    # -- back to the device ------------------------------------------------------------------

    def want(self, session: ExecutorSession, works: Iterable[Work]) -> bool:
        """Have come back with the rest what was put aside and these works name; whether any was."""
        table, found = session.table, False
        if table.aside:
            for work in works:
                for number in names_of(work):
                    buffer = table.buffers.get(number)
                    if buffer is not None and buffer.aside and buffer.saved is not None:
                        table.want(buffer)
                        found = True
        return found

    def restore(self, session: ExecutorSession) -> None:
        """Copy back all that is to come back, as soon as nothing of the session is in flight."""
        if session.queue.launched:
            session.movement.become(MovementState.DUE_BACK)
            return
        session.movement.become(MovementState.RETURNING)
        away = [b for b in session.table.buffers.values() if b.saved is not None and not b.aside]

        def over(result: CopiedBack | Exception) -> None:
            self._restored(session, result)

        self._thread.put(session.number, lambda: self._load_all(session, away), over)

    def _load_all(self, session: ExecutorSession, buffers: list[Buffer]) -> CopiedBack:
        """Load one after another, as long as there is room and somebody to load for."""
        loaded = CopiedBack([], [])
        for buffer in buffers:
            if session.life.is_over:
                break
            assert isinstance(buffer.saved, Saved)
            try:
                self._load(buffer, buffer.saved)
            except OSError as error:
                buffer.release()
                loaded.unreadable.append(buffer)
                _log.error("The spool file cannot be read: %s. What stood there is lost.", error)
            except (RuntimeError, MemoryError) as error:
                buffer.release()
                _log.warning("What was spilled comes back later: %s", error)
                break
            else:
                loaded.back.append(buffer)
        return loaded

    def _load(self, buffer: Buffer, saved: Saved) -> None:
        def write(offset: int, host: torch.Tensor) -> None:
            self._device.copy_in(buffer, offset, host)

        self._device.make_room(buffer)
        saved.load(write)

    def _restored(self, session: ExecutorSession, result: CopiedBack | Exception) -> None:
        session.movement.become(MovementState.STILL)
        if isinstance(result, Exception):
            raise result  # a mistake of ours: the bytes may be lost
        for buffer in result.back:
            session.table.come_back(buffer)
        for buffer in result.unreadable:
            session.table.poison(buffer.id, UNREADABLE)
        self._device.arrived(result.back)
        self.on_moved(session, -sum(buffer.nbytes for buffer in result.back))
        self.on_restored(session)


def _chosen(session: ExecutorSession, part: MemoryPart) -> list[Buffer]:
    """The buffers that are meant, as far as they are on the device."""
    here = [
        buffer
        for buffer in session.table.buffers.values()
        if buffer.base is not None and buffer.nbytes
    ]
    if part is MemoryPart.ALL:
        return here
    ephemeral = [buffer for buffer in here if not buffer.resident]
    return (
        ephemeral if part is MemoryPart.KEPT else [buffer for buffer in ephemeral if buffer.stale]
    )
