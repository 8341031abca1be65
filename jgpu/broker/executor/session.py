"""One client's session: its stream, arena, buffers, generators, and works in order.

The pump owns a session; the lane that runs its works uses the part under "for works", and no two
lanes do so at once.

Invariant: whatever a client does, `release` gives everything back.
"""

import logging
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from time import monotonic
from typing import Any, Final

import msgspec
import torch

from jgpu.broker.executor.connection import Connection
from jgpu.broker.executor.devices.base import Device, Port
from jgpu.broker.executor.memory.accounts import Account
from jgpu.broker.executor.memory.table import BufferTable
from jgpu.broker.executor.programs import Buffer, Failure, Running
from jgpu.broker.executor.works.base import Work, WorkProgress
from jgpu.broker.executor.works.celltimes import CellDeviceTimes
from jgpu.broker.executor.works.course import Course
from jgpu.errors import ProtocolError
from jgpu.sched import MemoryPart
from jgpu.wire import messages
from jgpu.wire.arena import Arena

__all__ = ["LOST", "ExecutorSession"]

_log = logging.getLogger(__name__)

#: torch's default seed, for generators that nobody seeded
_SEED: Final = 67280421310721
_MAX_GENERATORS: Final = 1024
#: buffers of one session, poisoned ones included
_MAX_BUFFERS: Final = 1 << 18

#: why buffers of a session that came from another executor hold nothing
LOST: Final = Failure(
    0, 0, "", "DeviceLost", "The device that held this tensor ended; make the tensor again."
)


@dataclass
class ExecutorSession:
    """A client that was adopted; see the module."""

    number: int
    user: str
    label: str
    weight: float
    connection: Connection[messages.ClientMessage]
    arena: Arena
    account: Account
    device: Device
    #: marks where a stream begins anew
    token: bytes = b""
    #: its class, as in `jgpu.sched.Priority`
    priority: int = 1
    #: the session was another executor's: buffers that are named and not here are lost, no mistake
    lost: bool = False
    #: whose limits it counts for
    identity: str = ""

    #: messages read and not yet dealt with
    inbox: Iterator[messages.ClientMessage] | None = None
    #: works received and not yet offered to the scheduler, in order
    received: deque[Work] = field(default_factory=deque)
    #: works that the scheduler knows, in order; launched ones come first
    offered: deque[Work] = field(default_factory=deque)
    #: number of works in `offered` that a lane has
    launched: int = 0
    #: the lane that the last launched work was given to, and works that ride behind it
    lane: int = 0
    riders: int = 0
    #: a launched work that waits for memory in its midst; nothing of the session runs before it
    short: Work | None = None
    #: a work that is done but for those that ride behind it, and the seconds of all of them
    leader: Work | None = None
    leader_s: float = 0.0
    #: sum of `nbytes` of the works in `received` and `offered`
    queued_bytes: int = 0
    #: number that the next work must have; 0 where the first one may have any
    next_work: int = 1
    #: `Free` and `Tag` received after the last work
    after: list[messages.Free | messages.Tag] = field(default_factory=list)
    #: bytes of those, roughly
    after_bytes: int = 0
    #: the last work that was launched ended an iteration, or none was
    at_boundary: bool = True
    #: works taken back, whose effects wait for the launched ones, and requests to be told then
    cancelled: list[Work] = field(default_factory=list)
    cancel_requests: list[int] = field(default_factory=list)
    #: its memory is being copied to or from the host
    copying: bool = False
    #: it is to be brought back when nothing of the session is in flight
    to_restore: bool = False
    #: number of the first buffer that the running cell makes; None before it makes any
    cell_first: int | None = None
    #: number of the first buffer that a failed cell can have made, until they are marked
    failed_from: int | None = None
    #: what a rule asked of it since it has rested
    rest_asked: MemoryPart | None = None
    #: works that came after a Cancel that is not over
    held: list[Work] = field(default_factory=list)
    #: numbers of works whose definition was asked for again; their Run comes again, too
    asked: set[int] = field(default_factory=set)
    #: hashes of programs whose learnt geometry the client was told, or needs not be told
    told: set[bytes] = field(default_factory=set)
    #: probes and definitions that helper threads have
    helping: int = 0
    #: bytes of what they, and those that wait for them, hold, roughly
    helping_bytes: int = 0
    #: why the session ends, or None while it lives
    ending: str | None = None
    #: a work showed that the client breaks the protocol
    violated: bool = False
    #: the stream is closed; what runs runs out
    closed: bool = False
    #: descriptor events that the pump waits for
    mask: int = 0
    #: device seconds that the scheduler has charged it
    charged_s: Callable[[], float] = lambda: 0.0
    #: bytes of the device that no session holds
    free_bytes: Callable[[], int] = lambda: 0
    iterations: int = 0
    cell: str = ""
    #: users for whom it waits, and whether the client was told
    waits_for: tuple[str, ...] = ()
    wait_told: bool = False
    #: its notebook was told that it waits because the device is being drained
    drain_told: bool = False
    #: when it was last seen to have no work
    rests_since: float = field(default_factory=monotonic)

    def __post_init__(self) -> None:
        self.table = BufferTable()
        self.cells = CellDeviceTimes()
        #: how far its lane has come
        self.course = Course()
        self.generators: dict[int, torch.Generator] = {0: self.device.generator(_SEED)}
        self.torch_device = self.device.torch_device
        #: upload bytes of the arena's ring that were named so far
        self._arena_position = 0
        self.account.sessions.append(self)

    def __hash__(self) -> int:
        return self.number

    # -- for works ---------------------------------------------------------------------------

    @property
    def waiting_bytes(self) -> int:
        """Bytes of what it has sent and what is not done yet, roughly."""
        return self.queued_bytes + self.after_bytes + self.helping_bytes

    @property
    def over(self) -> bool:
        """Lanes skip the session's works from here on."""
        return self.ending is not None or self.violated

    def send(self, message: msgspec.Struct) -> None:
        """Write to the client; nothing happens once the session ends."""
        if self.ending is None:
            self.connection.send(message)

    def buffer(self, number: int) -> Buffer:
        """The buffer of that number; `ProtocolError` if the session has none."""
        found = self.table.buffers.get(number)
        if found is None:
            if not self.lost:
                raise ProtocolError(f"Buffer {number} is not one of this session's.")
            found = Buffer(number, None, 0, poison=LOST)
            self.table.add(found)
        return found

    def put(self, buffer: Buffer, port: Port) -> None:
        """Add a buffer that a work made."""
        old = self.table.add(buffer)
        if old is not None:
            port.retire([old])

    def drop(self, numbers: Iterable[int], port: Port) -> None:
        """Drop buffers; numbers that name none are skipped."""
        dropped = [b for n in numbers if (b := self.table.drop(n)) is not None]
        if dropped:
            port.retire(dropped)

    def settle(self, notes: list[messages.Free | messages.Tag], port: Port) -> None:
        """Do what came between two works."""
        for note in notes:
            if isinstance(note, messages.Free):
                self.drop(note.buffers, port)
            else:
                self.table.tag(note.buffers, resident=note.kind == messages.RESIDENT)
        notes.clear()

    def generator(self, index: int) -> torch.Generator:
        """Generator `index`, made at first use."""
        found = self.generators.get(index)
        if found is None:
            if len(self.generators) >= _MAX_GENERATORS:
                raise ProtocolError(f"A session has at most {_MAX_GENERATORS} generators.")
            found = self.generators[index] = self.device.generator(_SEED)
        return found

    def may_use(self, nbytes: int) -> bool:
        """Whether so many bytes more could ever be the session's."""
        return self.account.fits(self, nbytes)

    def out_of_memory(self, nbytes: int, added: int = 0) -> str:
        """The sentence for what can never fit beside `added` bytes of the running program."""
        return self.account.sentence(self, nbytes, added)

    def arena_upload(self, offset: int, count: int) -> memoryview:
        """Bytes of the arena's upload half; `ProtocolError` past its end."""
        return self.arena.upload(offset, count)

    def arena_download(self, offset: int, count: int) -> memoryview:
        """Bytes of the arena's download half; `ProtocolError` past its end."""
        return self.arena.download(offset, count)

    def reserve_arena(self, offset: int, count: int) -> int:
        """The ring's position after this piece: what to tell the client when it was copied."""
        skipped = (offset - self._arena_position) % self.arena.half
        self._arena_position += skipped + count
        return self._arena_position

    def note_bug(self, work: Work, error: BaseException) -> None:
        """Keep a trace of our own mistake for whoever mends it."""
        _log.error(
            "session %d, work %d: %s",
            self.number,
            work.number,
            "".join(traceback.format_exception(error)),
        )

    # -- for the pump ------------------------------------------------------------------------

    @property
    def outstanding(self) -> int:
        """Works received and not done."""
        return len(self.received) + len(self.offered) + len(self.held)

    @property
    def stops(self) -> bool:
        """Whether what waits in its midst is to be left there: it has ended, or is interrupted."""
        return self.course.stops

    @property
    def quiet(self) -> bool:
        """No lane has anything of this session, and no copy: its buffers may be touched."""
        return self.launched == 0 and not self.copying

    def accept(self, work: Work) -> None:
        """Put a work at the end of the order; `ProtocolError` if its number is not the next."""
        self.count(work)
        if len(self.table.buffers) > _MAX_BUFFERS:
            raise ProtocolError(f"A session has at most {_MAX_BUFFERS} buffers.")
        work.before, self.after = self.after, []
        work.nbytes += self.after_bytes
        self.after_bytes = 0
        (self.held if self.cancel_requests else self.received).append(work)
        self.queued_bytes += work.nbytes

    def count(self, work: Work) -> None:
        """Works are numbered without gaps; `ProtocolError` if this is not the next."""
        if self.next_work and work.number != self.next_work:
            raise ProtocolError(f"Work {work.number} came where {self.next_work} was due.")
        self.next_work = work.number + 1

    def note(self, message: messages.Free | messages.Tag) -> None:
        """Remember what is to be done after the works before it."""
        self.after.append(message)
        self.after_bytes += 64 + 8 * len(message.buffers)

    def note_made(self, buffer: int) -> None:
        """A work came that makes buffers from this number on; numbers grow."""
        if self.cell_first is None:
            self.cell_first = buffer

    def next_ready(self) -> Work | None:
        """The next work that the scheduler may be told of, taken out of `received`."""
        if not self.received or not self.received[0].ready:
            return None
        work = self.received.popleft()
        work.state = WorkProgress.OFFERED
        self.offered.append(work)
        return work

    def complete(self, work: Work) -> None:
        """A lane is through with a work, always the oldest one."""
        oldest = self.offered.popleft()
        assert oldest is work, "works of a session finish in order"
        work.state = WorkProgress.DONE
        self.cells.count(work.number, work.measured_s)
        self.launched -= 1
        self.queued_bytes -= work.nbytes
        self.iterations += work.ends_iteration and not (work.skipped or work.stopped)

    def abandon(self) -> None:
        """It has ended: no op of it begins any more, and what none in progress uses is freed.

        To be asked again until nothing of the session is launched: a lane may just be at something
        that is soon over.
        """
        self.course.abandon(self._free)

    def _free(self, running: Running | None, begun: int) -> None:
        if self.copying:
            return
        for work in self.offered:
            work.forget()
        buffers = self.table.buffers.values()
        if running is not None:
            kept = running.kept(begun)
            gone = [buffer for buffer in buffers if buffer.address not in kept]
            running.free_others(kept)
        elif self.device.launches_ahead:
            flying = {number for work in self.offered for number in work.touches()}
            gone = [buffer for buffer in buffers if buffer.id not in flying]
        else:
            gone = list(buffers)
        for buffer in gone:
            self.table.drop(buffer.id)
        self.device.discard(gone)

    def unlaunch(self, work: Work) -> None:
        """The youngest of the works that a lane had is back, and nothing of it has happened."""
        assert self.offered[self.launched - 1] is work
        self.launched -= 1
        self.at_boundary = work.began_at_boundary
        if self.ending is None:
            work.state = WorkProgress.OFFERED
        else:
            work.state = WorkProgress.CANCELLED
            self.offered.remove(work)
            self.queued_bytes -= work.nbytes

    def release(self) -> None:
        """Give everything back but the arena; no lane has anything of the session any more."""
        assert self.quiet
        self.device.discard(self.table.drop_all())
        self.generators.clear()
        self.received.clear()
        self.offered.clear()
        self.account.sessions.remove(self)
        self.connection.close()

    def validate(self) -> None:
        """Check what must always hold; not while a lane has something of the session."""
        works: list[Any] = [*self.offered, *self.received, *self.held]
        assert self.queued_bytes == sum(work.nbytes for work in works)
        assert self.launched == sum(work.state is WorkProgress.LAUNCHED for work in self.offered)
        if self.quiet:
            self.table.validate()
