"""The flight page: what an executor does right now, in memory that outlives it.

The control process makes the page, an executor writes it, and the control process reads it: at any
time, to see whether the executor lives, and after its end, to see what it was doing. There is a
sign of life of the pump, and a record for each lane and each helper thread: the session, the
program, the op, since when.

Nothing is locked. A record has one writer at a time. Its sequence number is odd while it changes,
and readers look again; one that stays so has begun nothing, and is read as at rest. The op is one
word of its own, written before each op of a program by a plain store to a memoryview
(`Record.mark`), so that it costs a program next to nothing.

Thread ids are those of `threading.get_ident`, which `faulthandler` prints, and of the kernel.
"""

import enum
import faulthandler
import mmap
import os
import struct
from dataclasses import dataclass
from threading import get_ident, get_native_id
from time import monotonic_ns
from typing import Any, Final

__all__ = ["NO_OP", "SIZE", "FlightEntry", "FlightPage", "Kind", "PumpSign", "Record", "State"]

#: the op of a record whose work is no program, or has not come to its first op
NO_OP: Final = -1

_WORD: Final = 8
#: bytes of the page before the records: one word, the pump's
_HEAD: Final = 4096
#: records, each with its names and its programs in flight
_RECORDS: Final = 80
_RECORD_BYTES: Final = 16384
SIZE: Final = _HEAD + _RECORDS * _RECORD_BYTES

#: words of a record by place
_SEQUENCE, _STATE, _OP, _IDENT, _NATIVE, _NAMES = range(6)
#: where the part begins that is copied for a program in flight, and its length in words
_FLIGHT, _FLIGHT_WORDS = 6, 8
#: sequence, state, op, ident, native id, names' length; work in flight: its state, session, work,
#: kind, since, program, ops
_LAYOUT: Final = struct.Struct("<6q5q16sq")
_ONE_WORD: Final = struct.Struct("<q")
_IN_FLIGHT: Final = struct.Struct("<5q16sq")
_LABEL_AT, _LABEL_BYTES = 128, 64
_RING_AT, _RING = 256, 48
_NAMES_AT: Final = _RING_AT + _RING * _FLIGHT_WORDS * _WORD
_NAMES_MOST: Final = _RECORD_BYTES - _NAMES_AT
_LOOKS: Final = 16
_MOST_FAULT: Final = 1 << 16


class State(enum.IntEnum):
    """What a record's thread does."""

    #: nobody has the record
    CLOSED = 0
    #: nothing; the record tells what it did last
    RESTS = 1
    WORKS = 2


class Kind(enum.IntEnum):
    """What sort of work a record tells of."""

    OTHER = 0
    PROGRAM = 1
    UPLOAD = 2
    DOWNLOAD = 3
    RANDOM = 4
    SYNC = 5
    DEFINITION = 6
    PROBE = 7
    COPY = 8
    #: a program that has the device alone: what flies of it is the op that was noted last
    TRIAL = 9


# Plain, for writing: looking into an enumeration takes longer than the rest.
_RESTS: Final = int(State.RESTS)
_WORKS: Final = int(State.WORKS)


@dataclass(frozen=True, slots=True)
class PumpSign:
    """The pump's last sign of life."""

    #: in `epoll`, for something to happen; else it is dealing with what happened
    waits: bool
    #: monotonic nanoseconds
    since_ns: int


@dataclass(frozen=True, slots=True)
class FlightEntry:
    """A record as it was read; the work is the one that runs, or the last one that ran."""

    #: "lane 3", "definitions", "probes", "copies"
    label: str
    state: State
    session: int
    #: the client's number of the work; 0 where it has none
    work: int
    kind: Kind
    #: monotonic nanoseconds
    since_ns: int
    #: hash of the program, or of what is probed; zeros where there is none
    program: bytes
    #: ops of the program
    ops: int
    #: place of the op in the program; NO_OP before the first one
    op: int
    #: name of the op, "" where it is not known
    name: str
    ident: int
    native_id: int


class Record:
    """One thread's part of the page, for writing; see `FlightPage.open`."""

    def __init__(self, memory: memoryview) -> None:
        self._memory = memory
        self._words = memory[:_NAMES_AT].cast("q")
        #: the op's word, for reading
        self.op = self._words[_OP : _OP + 1]
        self._names = b""
        #: bytes of them that there is room for
        self._kept = 0
        self._ident = self._native = 0
        self._flown = 0

    @classmethod
    def unseen(cls) -> "Record":
        """A record on no page."""
        return cls(memoryview(bytearray(_RECORD_BYTES)))

    def mark(self) -> memoryview:
        """A view of the op's word, of its own for each run: store the op's place in `[0]`.

        Whoever releases the view makes the next store raise ValueError.
        """
        return self.op[:]

    def begin(
        self,
        session: int,
        work: int,
        kind: Kind,
        program: bytes = b"",
        names: bytes = b"",
        ops: int = 0,
    ) -> None:
        """This thread begins a work; `names` are the names of its ops, in lines."""
        words = self._words
        ident = get_ident()
        if ident != self._ident:
            self._ident, self._native = ident, get_native_id()
        sequence = words[_SEQUENCE] | 1
        words[_SEQUENCE] = sequence
        if names is not self._names:
            self._names = names
            kept = names[:_NAMES_MOST]
            self._kept = len(kept)
            self._memory[_NAMES_AT : _NAMES_AT + self._kept] = kept
        # Not `pack_into`, which wipes the record first: a reader would take it for closed.
        self._memory[: _LAYOUT.size] = _LAYOUT.pack(
            sequence, _WORKS, NO_OP, ident, self._native, self._kept,
            _WORKS, session, work, kind, monotonic_ns(), program, ops,
        )  # fmt: skip
        words[_SEQUENCE] = sequence + 1

    def rest(self) -> None:
        """The work is over."""
        self._words[_STATE] = _RESTS

    def fly(self) -> int:
        """The work goes on on the device; returns its place for `landed`, -1 if none began."""
        if self._words[_STATE] != _WORKS:
            return -1
        place = self._flown % _RING
        self._flown += 1
        at = _RING_AT // _WORD + place * _FLIGHT_WORDS
        self._words[at : at + _FLIGHT_WORDS] = self._words[_FLIGHT : _FLIGHT + _FLIGHT_WORDS]
        return place

    def landed(self, place: int) -> None:
        """A work that flew is over on the device."""
        if place >= 0:
            self._words[_RING_AT // _WORD + place * _FLIGHT_WORDS] = _RESTS

    def close(self) -> None:
        """Nobody writes here any more."""
        self._words[_STATE] = State.CLOSED


class FlightPage:
    """The page, over memory that is shared or not."""

    def __init__(self, memory: mmap.mmap, descriptor: int = -1) -> None:
        self._map = memory
        self._memory = memoryview(memory)
        self._pump = self._memory[:_WORD].cast("q")
        #: of the shared memory; -1 where it is not shared
        self.descriptor = descriptor

    @classmethod
    def create(cls) -> "FlightPage":
        """A new page in a memory file (pages that nobody touches cost nothing)."""
        descriptor = os.memfd_create("jgpu-flight", os.MFD_CLOEXEC)
        try:
            os.ftruncate(descriptor, SIZE)
            return cls(mmap.mmap(descriptor, SIZE), descriptor)
        except BaseException:
            os.close(descriptor)
            raise

    @classmethod
    def adopt(cls, descriptor: int) -> "FlightPage":
        """The page that another process made; the descriptor is this object's from here on."""
        return cls(mmap.mmap(descriptor, SIZE), descriptor)

    @classmethod
    def unshared(cls) -> "FlightPage":
        """A page that nobody else sees."""
        return cls(mmap.mmap(-1, SIZE))

    def close(self) -> None:
        """Give the descriptor back; the memory stays as long as somebody has it."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1

    # -- writing -----------------------------------------------------------------------------

    def watch_faults(self) -> None:
        """Have this process write behind the page which of its threads a fatal signal ended."""
        if self.descriptor >= 0:
            os.lseek(self.descriptor, SIZE, os.SEEK_SET)
            faulthandler.enable(self.descriptor)

    def open(self, label: str) -> Record:
        """A record that nobody has; one that is on no page where all are taken."""
        for place in range(_RECORDS):
            memory = self._record(place)
            words = memory[:_NAMES_AT].cast("q")
            if words[_STATE] == State.CLOSED:
                memory[:_LABEL_AT] = bytes(_LABEL_AT)
                text = label.encode()[:_LABEL_BYTES]
                memory[_LABEL_AT:_NAMES_AT] = text.ljust(_NAMES_AT - _LABEL_AT, b"\0")
                words[_STATE] = State.RESTS
                return Record(memory)
        return Record.unseen()

    def pump_waits(self) -> None:
        """The pump is about to wait in `epoll`."""
        self._pump[0] = monotonic_ns() << 1 | 1

    def pump_works(self) -> None:
        """The pump deals with what happened."""
        self._pump[0] = monotonic_ns() << 1

    # -- reading -----------------------------------------------------------------------------

    def fault(self) -> str:
        """What `faulthandler` wrote, if a fatal signal ended the process."""
        return os.pread(self.descriptor, _MOST_FAULT, SIZE).decode(errors="replace")

    def pump_sign(self) -> PumpSign | None:
        """The pump's last sign; None before the first one."""
        word = self._pump[0]
        return PumpSign(bool(word & 1), word >> 1) if word else None

    def entries(self) -> list[FlightEntry]:
        """What all open records say, working or at rest."""
        found = (self._entry(self._record(place)) for place in range(_RECORDS))
        return [entry for entry in found if entry is not None]

    def in_flight(self) -> list[FlightEntry]:
        """Programs that the device was given and that were not seen to be over, in each lane.

        Their ops are not known; where more fly than the page has room for, the oldest are left out.
        """
        flying = []
        for memory in map(self._record, range(_RECORDS)):
            for k in range(_RING if memory[_WORD] != State.CLOSED else 0):
                words = _IN_FLIGHT.unpack_from(memory, _RING_AT + k * _FLIGHT_WORDS * _WORD)
                if words[0] == State.WORKS:
                    flying.append(_made(_label(memory), words[0], words, NO_OP, "", (0, 0)))
        return flying

    def _record(self, place: int) -> memoryview:
        at = _HEAD + place * _RECORD_BYTES
        return self._memory[at : at + _RECORD_BYTES]

    def _entry(self, memory: memoryview) -> FlightEntry | None:
        if memory[_WORD] == State.CLOSED:
            return None
        for _ in range(_LOOKS):
            words = _LAYOUT.unpack_from(memory)
            names = bytes(memory[_NAMES_AT : _NAMES_AT + max(0, min(words[_NAMES], _NAMES_MOST))])
            label = _label(memory)
            (after,) = _ONE_WORD.unpack_from(memory)
            if not after & 1 and after == words[_SEQUENCE]:
                break  # not in the midst of a change
        else:
            # Stopped in the midst of a change: its next work has not begun.
            words, names = (after, State.RESTS, NO_OP, *words[_IDENT:]), b""
        if words[_STATE] not in (_RESTS, _WORKS):
            return None
        op, lines = words[_OP], names.split(b"\n")
        # The last line may be cut.
        whole = lines if len(names) < _NAMES_MOST else lines[:-1]
        name = whole[op].decode(errors="replace") if 0 <= op < len(whole) else ""
        return _made(label, words[_STATE], words[_FLIGHT:], op, name, words[_IDENT:_NAMES])


def _label(memory: memoryview) -> str:
    label = bytes(memory[_LABEL_AT : _LABEL_AT + _LABEL_BYTES])
    return label.rstrip(b"\0").decode(errors="replace")


def _made(
    label: str, state: int, flight: tuple[Any, ...], op: int, name: str, thread: tuple[Any, ...]
) -> FlightEntry:
    _, session, work, kind, since_ns, program, ops = flight
    known = Kind(kind) if kind in iter(Kind) else Kind.OTHER
    return FlightEntry(
        label, State(state), session, work, known, since_ns, program, ops, op, name, *thread
    )
