"""Wrong values that only the device could see: read with the next wait, and told as failures.

Where kernels trust values, a guard has replaced what was wrong and noted it on the device
(`programs.running.notes`). The notes are copied with each wait and each boundary, behind the ops,
and read when the work that they were copied with is over. If one says that a value was wrong, its
op has failed: what it made and what was computed of that since is poisoned, what it and later ops
wrote in place as well, for nobody has the values from before. That works its way through the works
that were launched meanwhile, op by op, by their plans.

A session that launches no guarded op copies nothing, any other one small copy with a wait.

Invariant: no value is told that was computed after a look whose note was not read.
"""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final

from jgpu.broker.executor.devices.base import Port
from jgpu.broker.executor.programs import Buffer, Failure
from jgpu.broker.executor.programs.running.notes import BLOCK, ValueNote, ValueNotes

if TYPE_CHECKING:
    from jgpu.broker.executor.memory.table import BufferTable
    from jgpu.broker.executor.works.base import Work

__all__ = ["ValueFaults"]

#: works that wait for their notes to be read, at most; then these are copied without a wait
_TRAIL: Final = 64

#: by work and op, the guard's note of what was wrong there
_Faults = dict[int, dict[int, ValueNote]]


@dataclass(slots=True)
class _Reading:
    """Notes on their way to the host."""

    work: "Work"
    notes: list[ValueNote]
    #: by block
    data: list[bytearray] = field(default_factory=list)
    #: blocks that have not come, or of which nobody knows whether they have
    missing: int = 0

    def wrong(self) -> Iterable[ValueNote]:
        """What a guard noted as wrong, as far as it has come."""
        said = b"".join(self.data)
        return (note for note, byte in zip(self.notes, said, strict=True) if byte)

    def landed(self, block: int, data: bytes) -> None:
        """The bytes of one block have come."""
        mine = self.data[block]
        mine[:] = data[: len(mine)]
        self.missing -= 1


class ValueFaults:
    """One session's; used by the lane that has the session."""

    def __init__(self, notes: ValueNotes) -> None:
        self.notes = notes
        #: works since the oldest one of which a note was not read, in order
        self._trail: deque[Work] = deque()
        self._readings: deque[_Reading] = deque()
        #: blocks of notes that the device knows as made by a lane
        self._known = 0
        #: what was poisoned while the device may be at it
        self._dropped: list[Buffer] = []

    # -- while a work is launched ---------------------------------------------------------------

    def begin(self, work: "Work", port: Port) -> None:
        """A work is launched: what it notes is its own."""
        self.notes.work = work.number
        port.use(self.notes.blocks)
        if self._dropped:
            port.retire(self.drop())

    def launched(self, work: "Work", port: Port) -> None:
        """All of a work was launched: have the notes copied behind it, if somebody will ask."""
        if not (self.notes.taken or self._trail or self._readings):
            return
        self._trail.append(work)
        asked = work.reads_notes or work.followers or len(self._trail) >= _TRAIL
        if self.notes.taken and asked:
            reading = self._copy(work, port)
            for place, target in enumerate(reading.data):
                if not self._tell(reading, place, port):
                    port.read(self.notes.blocks[place], 0, memoryview(target))

    def tell_before(self, work: "Work", port: Port) -> bool:
        """Have the notes copied before a value is told in the midst of a run; whether they are."""
        if not self.notes.taken:
            return True
        reading = self._copy(work, port)
        if all(self._tell(reading, place, port) for place in range(len(reading.data))):
            return True
        self.notes.taken = self._readings.pop().notes
        return False

    def _copy(self, work: "Work", port: Port) -> _Reading:
        """What there is to copy; from here on its places are free."""
        reading = _Reading(work, self.notes.forget())
        self._readings.append(reading)
        port.made(self.notes.blocks[self._known :])
        self._known = len(self.notes.blocks)
        for at in range(0, len(reading.notes), BLOCK):
            reading.data.append(bytearray(min(BLOCK, len(reading.notes) - at)))
        reading.missing = len(reading.data)
        return reading

    def _tell(self, reading: _Reading, place: int, port: Port) -> bool:
        base = self.notes.blocks[place].base
        assert base is not None
        return port.tell(base.untyped_storage(), partial(reading.landed, place))

    # -- when it is over -----------------------------------------------------------------------

    @property
    def suspected(self) -> bool:
        """Whether a value that comes now may be wrong: notes are missing, or say so."""
        return any(reading.missing or any(reading.wrong()) for reading in self._readings)

    def settle(self, work: "Work", table: "BufferTable") -> list[tuple[Failure, list[int]]]:
        """A work is over: poison what follows from the notes that were copied with it.

        Returns the failures, each with the numbers of the buffers that it poisoned.
        """
        faults: _Faults = {}
        while self._readings and self._readings[0].work is work:
            for note in self._readings.popleft().wrong():
                faults.setdefault(note.work, {}).setdefault(note.op, note)
        found = self._poison(faults, table) if faults else []
        unread = self._readings[0].notes if self._readings else self.notes.taken
        while self._trail and not (unread and self._trail[0].number >= unread[0].work):
            self._trail.popleft()
        return found

    def _poison(self, faults: _Faults, table: "BufferTable") -> list[tuple[Failure, list[int]]]:
        tainted: dict[int, Failure] = {}
        failures: list[Failure] = []
        for work in self._trail:
            failures += work.spread(tainted, faults.get(work.number, {}))
            for download in work.followers:
                download.spoil(tainted)
        poisoned: dict[int, list[int]] = {id(failure): [] for failure in failures}
        for number, failure in tainted.items():
            buffer = table.buffers.get(number)
            if buffer is not None and buffer.poison is None:
                poisoned[id(failure)].append(number)
                table.poison(number, failure)
                self._dropped.append(buffer)
        return [(failure, poisoned[id(failure)]) for failure in failures]

    def drop(self) -> list[Buffer]:
        """What was poisoned, for whoever knows that the device is at nothing of the session."""
        dropped, self._dropped = self._dropped, []
        return dropped

    def drop_all(self) -> list[Buffer]:
        """All memory; the session ends."""
        self._trail.clear()
        self._readings.clear()
        return [*self.drop(), *self.notes.clear()]
