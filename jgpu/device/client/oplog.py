"""Ops that were recorded and not sent yet, in pieces, and who asked for them.

The log is cut into pieces of growing size from each boundary on, so that the device works while
Python still records. A large piece ends where what was recorded looks as it did at the end of
others (`OpLog.joint`): chains that repeat are cut alike wherever they begin. Which statement of the
notebook asked for an op is noted by the frame that ran it: its code once a statement, and the
instruction with each op.

Entries are appended by `recording`, which may run in several threads; all else is done by whoever
has the session's lock.
"""

from types import CodeType
from typing import TYPE_CHECKING, Any

from jgpu.device.recording.cuts.taking import Entry
from jgpu.device.tensor import BufferHandle

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["JOINTED", "PIECES", "OpLog", "line_of"]

#: Most ops in the pieces that a log is cut into, counted from each boundary; the last one repeats.
#: A piece costs both sides what recording some forty ops does, so the first is no smaller.
PIECES = (32, 96, 160)
#: The first piece is sent with so many ops already where they read and write so many bytes: the
#: device takes longer for them than both sides do for a piece.
_HALF = 16
_MUCH_BYTES = 512 << 10
#: Smaller pieces are not cut by what is in them, larger ones lose at most a third.
JOINTED = 96
#: Most ops that are soon done, and most bytes of what one of them reads or writes.
_FEW_OPS = 16
_FEW_BYTES = 64 << 10

#: statements of a run: the first op that each asked for, and its code
Statements = tuple[tuple[int, CodeType | None], ...]


class OpLog:
    """The entries, how many of them make a piece, and the statement that runs."""

    __slots__ = (
        "_before", "_looks", "_piece", "_statements", "entries", "find_frame", "frame", "limit",
    )  # fmt: skip

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        #: number of entries that are to be sent at once
        self.limit = _HALF
        self._piece = 0
        #: ops that were recorded before those in the log
        self._before = 0
        #: frame whose instruction is noted with each op, how to find it, and whether to look
        self.frame: Any = None
        self.find_frame: Callable[[], Any] = lambda: None
        self._looks = True
        #: compiled statements that ops in the log were asked for by: ops before each, and its code
        self._statements: list[tuple[int, CodeType | None]] = []

    def __len__(self) -> int:
        return len(self.entries)

    @property
    def recorded(self) -> int:
        """How many ops were recorded so far."""
        return self._before + len(self.entries)

    # -- statements --------------------------------------------------------------------------

    def look(self) -> Any:
        """The frame whose instructions are noted, looked for once a statement of a cell."""
        if self._looks:
            self._looks = False
            self.frame = frame = self.find_frame()
            code = frame.f_code if frame is not None else None
            self._statements.append((self.recorded, code))
        return self.frame

    def forget_frame(self) -> None:
        """What is recorded next is asked for by another statement."""
        self.frame = None
        self._looks = True

    def instruction(self) -> int:
        """Offset of the instruction that asks for an op now; -1 if it is not known."""
        frame = self.frame or self.look()
        return frame.f_lasti if frame is not None else -1

    # -- cutting -----------------------------------------------------------------------------

    def grow(self) -> bool:
        """Have a first piece go on that is half full of what is soon done; whether it does.

        That follows from the geometries alone: what repeats is cut alike each time.
        """
        if self.limit != _HALF or self._moved_bytes() >= _MUCH_BYTES:
            return False
        self.limit = PIECES[0]
        return True

    def _moved_bytes(self) -> int:
        moved = 0
        for plan, _, _, outs, _, _ in self.entries:
            moved += plan.nbytes
            for made in outs:
                moved += made.nbytes
        return moved

    def is_brief(self) -> bool:
        """Whether what was recorded is soon done, so that the device need not begin with it now."""
        if len(self.entries) > _FEW_OPS:
            return False
        for _, buffers, _, outs, _, _ in self.entries:
            for buffer in (*buffers, *outs):  # plain: a generator costs twice that
                if buffer.nbytes > _FEW_BYTES:
                    return False
        return True

    def taken(self, count: int) -> Statements:
        """The first so many entries were taken out; returns the statements that asked for them."""
        first = self._before
        self._before = first + count
        statements = self._statements
        if len(statements) == 1:  # it may go on
            at, code = statements[0]
            return ((at - first if at > first else 0, code),)
        codes = tuple([(at - first if at > first else 0, code) for at, code in statements])
        begun = [at for at, _ in statements if at <= self._before]
        del statements[: len(begun) - 1 if begun else 0]
        return codes

    def joint(self) -> Entry | None:
        """The op with which the next piece begins, now that this one is full; None: all is sent.

        The place follows from the ops around it alone, the last one where several are alike: so a
        chain that repeats, such as a cell of a recurrent net, is in the same phase in each piece
        from the second on, whatever came before it, and one program serves them all
        (content-defined chunking, as of Muthitacharoen, Chen and Mazieres, LBFS, SOSP 2001).
        """
        count = self.limit
        if count < JOINTED or len(self.entries) < count:
            return None
        window = self.entries[count - count // 3 - 1 :]
        marks = [entry[0].info.mark for entry in window]
        found, least = len(window), -1
        for k in range(1, count // 3 + 1):
            mark = marks[k - 1] * 31 ^ marks[k]
            if mark <= least or least < 0:
                found, least = k + 1, mark
        return window[found] if found < len(window) else None

    def next_piece(self) -> None:
        """A piece was sent; the iteration goes on."""
        self._piece = min(self._piece + 1, len(PIECES) - 1)
        self.limit = PIECES[self._piece]

    def first_piece(self) -> None:
        """An iteration ended, or will have to wait for what was just sent."""
        self._piece, self.limit = 0, _HALF

    # -- what was made last ------------------------------------------------------------------

    def factory_of(self, buffer: BufferHandle) -> Entry | None:
        """The last recorded op if it does nothing but make this buffer empty."""
        last = self.entries[-1] if self.entries else None
        if last is None or last[3] != (buffer,):
            return None
        return last if last[0].info.name.startswith("aten::empty") else None

    def is_just_made(self, buffer: BufferHandle) -> bool:
        """Whether the last recorded op does nothing but make this buffer empty."""
        return self.factory_of(buffer) is not None

    def makes(self, buffer: BufferHandle) -> bool:
        """Whether an op in the log makes this buffer."""
        return any(buffer in entry[3] for entry in self.entries)

    def may_write(self, buffer: BufferHandle) -> bool:
        """Whether an op in the log may write this buffer."""
        return any(
            buffer in entry[1] and bool(entry[0].info.writes or entry[0].info.unsaid)
            for entry in self.entries[:]
        )

    def withdraw(self, entry: Entry) -> None:
        """This op is not needed; it counts as recorded."""
        del self.entries[self.place(entry)]  # other threads may have recorded since
        self._before += 1

    def place(self, entry: Entry) -> int:
        """How many entries were recorded before this one."""
        return next(k for k, each in enumerate(self.entries) if each is entry)

    # -- loss --------------------------------------------------------------------------------

    def forget(self) -> None:
        """The device is gone, and with it what the ops in the log are about."""
        self.entries.clear()
        self._statements = [(self._before, code) for _, code in self._statements[-1:]]
        self.first_piece()

    def refuse(self) -> None:
        """In a forked child: nothing is sent, and the first op that is recorded tells."""
        self.entries.clear()
        self.limit = 1


def line_of(code: CodeType, instruction: int) -> int:
    """The source line of an instruction's offset; 0 if it has none."""
    for start, end, line in code.co_lines():
        if start <= instruction < end:
            return line or 0
    return 0
