"""Small values that the notebook reads: told unasked, and kept while they stand.

A buffer that is read once is likely to be read again when its program runs again. The next run says
so, the executor tells the value as soon as it is there, and the read finds it in the socket.
Whoever stops reading is told a few values in vain, then none. `loss.item()` without asking.

What was read is kept, so that whoever reads it again (`if loss < best`, then `print(loss.item())`)
waits for nothing.

Invariant: a value stands for its buffer only until a later run may write that buffer.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from jgpu.device.recording.cuts.recorder import Compiled, Cut
from jgpu.device.tensor import BufferHandle
from jgpu.wire import limits

__all__ = ["PredictedReads"]

#: runs in vain after which a value is no longer told
_IN_VAIN = 4
#: works among which the maker of a buffer is looked for
_LOOK_BACK = 32
#: bytes of the largest value that is kept, and how many are
_KEPT_BYTES = 4096
_MOST_KEPT = 256


class _Value(msgspec.Struct, eq=False):
    """What is told of one buffer."""

    compiled: Compiled
    slot: int
    data: bytes | None = None


class PredictedReads:
    """Which values will be told, those that were, and those that were read."""

    def __init__(self) -> None:
        self._values: dict[int, _Value] = {}
        #: whole buffers that were read, by id, oldest first
        self._kept: dict[int, bytes] = {}

    @property
    def by_buffer(self) -> tuple[dict[int, Any], ...]:
        """All that is known here of buffers, by their ids."""
        return self._values, self._kept

    def clear(self) -> None:
        """Nothing is awaited any more, and nothing is known."""
        self._values.clear()
        self._kept.clear()

    def of_run(self, cut: Cut, live: bytes) -> tuple[int, ...]:
        """Fresh slots of a run whose values are wanted; they are awaited from here on."""
        compiled, values = cut.compiled, self._values
        kept = self._kept
        if values or kept:
            for slot in compiled.written:
                values.pop(cut.inputs[slot], None)
                kept.pop(cut.inputs[slot], None)
        if not compiled.wanted:
            return ()
        slots = []
        for slot, in_vain in list(compiled.wanted.items()):
            if in_vain >= _IN_VAIN:
                del compiled.wanted[slot]
            elif live[slot >> 3] >> (slot & 7) & 1:
                compiled.wanted[slot] = in_vain + 1
                values[cut.first + slot] = _Value(compiled, slot)
                slots.append(slot)
        return tuple(slots)

    def forget(self, buffers: Iterable[int]) -> None:
        """These buffers are gone, or hold something else."""
        if self._values or self._kept:
            for buffer in buffers:
                self._values.pop(buffer, None)
                self._kept.pop(buffer, None)

    def expects(self, buffer: int) -> bool:
        """Whether the buffer's value was told, or will be."""
        return buffer in self._values

    def arrive(self, buffer: int, data: bytes) -> None:
        """A value was told; an empty one has to be asked for after all."""
        value = self._values.get(buffer)
        if value is None:
            return
        if data:
            value.data = data
        else:
            del self._values[buffer]

    def told(self, buffer: int) -> bool:
        """Whether the waiting is over: the value is there, or will not be told."""
        value = self._values.get(buffer)
        return value is None or value.data is not None

    def read(self, buffer: int) -> bytes | None:
        """What was told of the buffer; it is read, so it will be told again."""
        value = self._values.get(buffer)
        if value is None or value.data is None:
            return None
        value.compiled.wanted[value.slot] = 0
        return value.data

    def keep(self, buffer: int, data: bytes) -> None:
        """All that a buffer holds was read, and is this."""
        if 0 < len(data) <= _KEPT_BYTES:
            if len(self._kept) >= _MOST_KEPT:
                del self._kept[next(iter(self._kept))]
            self._kept[buffer] = data

    def at_hand(self, buffer: int) -> bytes | None:
        """What the buffer holds, if it was read before.

        What was told and not read yet does not count: when it comes is chance, and where the log is
        cut must not hang on that.
        """
        return self._kept.get(buffer)

    def was_asked(self, buffer: BufferHandle, works: Sequence[tuple[int, Cut]]) -> None:
        """The host asked for a buffer: want it from the next run of the program that made it."""
        if not 0 < buffer.nbytes <= limits.WANTED_BYTES:
            return
        for k in range(1, min(_LOOK_BACK, len(works)) + 1):
            cut = works[-k][1]
            compiled = cut.compiled
            slot = buffer.id - cut.first
            if 0 <= slot < compiled.fresh:
                if slot in compiled.wanted or len(compiled.wanted) < limits.MAX_WANTED:
                    compiled.wanted[slot] = 0
                return
