"""One client's session: its stream, arena, buffers, generators, and works in order.

The pump owns a session; the lane that runs its works uses the part under "for works", and no two
lanes do so at once. What a session is made of has rooms of its own: its phase (`lifecycle`), the
order of its works (`works.queue`), how far its lane has come (`works.course`), where its memory is
(`memory`), where it stands with the scheduler (`scheduling.standing`).

Invariant: whatever a client does, `release` gives everything back.
"""

import logging
import traceback
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import msgspec
import torch

from jgpu.broker.executor.admission.pending import PendingPrograms
from jgpu.broker.executor.connection import Connection
from jgpu.broker.executor.devices.base import Device, Port
from jgpu.broker.executor.lifecycle import Lifecycle, LifePhase
from jgpu.broker.executor.memory.accounts import Account
from jgpu.broker.executor.memory.clientarena import ClientArena
from jgpu.broker.executor.memory.movement import MemoryMovement
from jgpu.broker.executor.memory.table import MAX_BUFFERS, BufferTable
from jgpu.broker.executor.programs import KINDS, Buffer, Failure, Running
from jgpu.broker.executor.programs.running.notes import ValueNotes
from jgpu.broker.executor.scheduling.rests import Rest
from jgpu.broker.executor.scheduling.standing import LaneStanding
from jgpu.broker.executor.scheduling.waits import WaitNotice
from jgpu.broker.executor.works.base import Work
from jgpu.broker.executor.works.cells import SessionCells
from jgpu.broker.executor.works.course import Course
from jgpu.broker.executor.works.faults import ValueFaults
from jgpu.broker.executor.works.hostonly import MANY
from jgpu.broker.executor.works.queue import ProgressReports, WorkQueue
from jgpu.broker.executor.works.states import LaneProgress
from jgpu.errors import ProtocolError
from jgpu.wire import limits, messages
from jgpu.wire.arena import Arena

__all__ = ["LOST", "ExecutorSession", "SessionOwner"]

_log = logging.getLogger(__name__)

#: torch's default seed, for generators that nobody seeded
_SEED: Final = 67280421310721
#: how lanes leave a work that is wholly done
_BEGUN: Final = LaneProgress.BEGUN

#: why buffers of a session that came from another executor hold nothing
LOST: Final = Failure(
    0, 0, "", "DeviceLost", "The device that held this tensor ended; make the tensor again."
)


@dataclass(frozen=True, slots=True)
class SessionOwner:
    """Whose a session is, and what it counts."""

    user: str
    #: whose limits it counts for
    identity: str = ""
    weight: float = 1.0
    #: its class, as in `jgpu.sched.Priority`
    priority: int = 1


class ExecutorSession:
    """A client that was adopted; see the module."""

    def __init__(
        self,
        number: int,
        owner: SessionOwner,
        connection: Connection[messages.ClientMessage],
        arena: Arena,
        account: Account,
        device: Device,
        *,
        lost: bool = False,
    ) -> None:
        self.number = number
        self.owner = owner
        self.connection = connection
        self.arena = ClientArena(arena)
        self.account = account
        self.device = device
        #: it was another executor's: buffers that are named and not here are lost, no mistake
        self.lost = lost
        self.life = Lifecycle()
        self.queue = WorkQueue(0 if lost else 1)
        #: how far its lane has come
        self.course = Course()
        #: its lane and its boundary, as the scheduler knows them
        self.standing = LaneStanding()
        #: whom it waits for, and since when it has nothing to do
        self.wait = WaitNotice()
        self.rest = Rest()
        self.table = BufferTable()
        #: whether its memory is being copied to or from the host
        self.movement = MemoryMovement()
        self.generators: dict[int, torch.Generator] = {0: device.generator(_SEED)}
        self.programs = PendingPrograms()
        self.progress = ProgressReports(self.send)
        self.cells = SessionCells()
        #: wrong values that only the device sees; None where guards look themselves
        self.faults: ValueFaults | None = None
        if KINDS[device.kind].trusts_values:
            self.faults = ValueFaults(ValueNotes(device.torch_device, device.mender))
        account.sessions.append(self)

    # -- for works ---------------------------------------------------------------------------

    @property
    def waiting_bytes(self) -> int:
        """Bytes of what it has sent and what is not done yet, roughly."""
        queue = self.queue
        return queue.nbytes + queue.notes_bytes + self.programs.nbytes

    def send(self, message: msgspec.Struct) -> None:
        """Write to the client; nothing happens once the session ends."""
        if not self.life.has_ended:
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

    def buffers(self, numbers: Iterable[int]) -> list[Buffer]:
        """The buffers of those numbers; `ProtocolError` if the session has not all of them."""
        found = self.table.buffers
        try:
            return [*map(found.__getitem__, numbers)]
        except KeyError:
            return [self.buffer(number) for number in numbers]

    def put(self, buffer: Buffer, port: Port) -> None:
        """Add a buffer that a work made."""
        old = self.table.add(buffer)
        if old is not None:
            port.retire([old])

    def drop(self, numbers: Iterable[int], port: Port) -> None:
        """Drop buffers; numbers that name none are skipped."""
        dropped = self.table.drop_all_of(numbers)
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
            if len(self.generators) >= limits.MAX_GENERATORS:
                raise ProtocolError(f"A session has at most {limits.MAX_GENERATORS} generators.")
            found = self.generators[index] = self.device.generator(_SEED)
        return found

    def may_use(self, nbytes: int) -> bool:
        """Whether so many bytes more could ever be the session's."""
        return self.account.fits(self, nbytes)

    def out_of_memory(self, nbytes: int, added: int = 0) -> str:
        """The sentence for what can never fit beside `added` bytes of the running program."""
        return self.account.sentence(self, nbytes, added)

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
    def stops(self) -> bool:
        """Whether what waits in its midst is to be left there: it has ended, or is interrupted."""
        return self.course.stops

    @property
    def quiet(self) -> bool:
        """No lane has anything of this session, and no copy: its buffers may be touched."""
        return self.queue.launched == 0 and not self.movement.is_copying

    def accept(self, work: Work) -> None:
        """Put a work at the end of the order; `ProtocolError` if there are too many buffers."""
        if len(self.table.buffers) > MAX_BUFFERS:
            raise ProtocolError(f"A session has at most {MAX_BUFFERS} buffers.")
        self.queue.accept(work)

    def complete(self, work: Work) -> None:
        """A lane is through with a work, always the oldest one."""
        self.queue.complete(work)
        self.cells.times.count(work.number, work.measured_s)
        self.progress.note(work.number, work.ops)
        self.standing.iterations += work.ends_iteration and work.progress is _BEGUN

    def abandon(self) -> None:
        """It has ended: no op of it begins any more, and what none in progress uses is freed.

        To be asked again until nothing of the session is launched: a lane may just be at something
        that is soon over.
        """
        self.course.abandon(self._free)

    def _free(self, running: Running | None, begun: int) -> None:
        if self.movement.is_copying:
            return
        for work in self.queue.offered:
            work.forget()
        buffers = self.table.buffers.values()
        if running is not None:
            kept = running.kept(begun)
            gone = [buffer for buffer in buffers if buffer.address not in kept]
            running.free_others(kept)
        elif len(buffers) > MANY:
            return  # freed a part in each round (`scheduling.emptying`)
        elif self.device.launches_ahead:
            flying = {number for work in self.queue.offered for number in work.touches()}
            gone = [buffer for buffer in buffers if buffer.id not in flying]
        else:
            gone = list(buffers)
        for buffer in gone:
            self.table.drop(buffer.id)
        self.device.discard(gone)

    def unlaunch(self, work: Work) -> None:
        """The youngest of the works that a lane had is back, and nothing of it has happened."""
        self.queue.unlaunch(work, dropped=self.life.has_ended)
        self.standing.at_boundary = work.began_at_boundary

    def release(self) -> None:
        """Give everything back but the arena; no lane has anything of the session any more."""
        assert self.quiet
        self.device.discard(self.table.drop_all())
        if self.faults is not None:
            self.device.discard(self.faults.drop_all())
        self.generators.clear()
        self.account.sessions.remove(self)
        self.connection.close()
        self.life.become(LifePhase.RELEASED)

    def validate(self) -> None:
        """Check what must always hold; not while a lane has something of the session."""
        self.life.validate()
        self.queue.validate()
        self.movement.validate()
        self.programs.validate()
        if self.quiet:
            self.table.validate()
