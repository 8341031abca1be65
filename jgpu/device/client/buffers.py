"""The storages that one generation has on the device: ids, bytes, values, and which are poisoned.

Finalizers append the ids of what Python forgot to `graveyard`, and do nothing else. A lost
generation's buffers keep its graveyard, so that what they append later frees nothing of the next.

Invariant: what is poisoned is held, and counts no bytes (`validate`).
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

from jgpu.device.client.notebook.wanted import PredictedReads
from jgpu.device.recording.cuts.recorder import Cut
from jgpu.device.recording.cuts.taking import Given, Known, bury, settle
from jgpu.device.tensor import BufferHandle

__all__ = ["ClientBuffers", "HeldBytes"]

#: without inputs or outputs: what was forgotten is the run's in no way
_NO_RUN: Final[Given] = ((), 0, 0, b"")


class HeldBytes:
    """Sizes of the storages that the executor has for this process, by id, and their sum.

    From when a program or an upload that makes a storage is sent until it was said that nobody
    needs it. What is recorded and not sent yet is not counted here (`largest` does).
    """

    def __init__(self) -> None:
        self._sizes: dict[int, int] = {}
        #: sum of the sizes; what was forgotten and not yet told is in it
        self.nbytes = 0
        #: called when storages became known, or were forgotten
        self.on_change: Callable[[], None] = lambda: None

    def __contains__(self, number: int) -> bool:
        return number in self._sizes

    def __iter__(self) -> Iterator[int]:
        return iter(self._sizes)

    def __len__(self) -> int:
        return len(self._sizes)

    def add(self, number: int, nbytes: int) -> None:
        """The executor has, or will have, a storage of this size; again where it has another."""
        self.nbytes += nbytes - self._sizes.get(number, 0)
        self._sizes[number] = nbytes

    def settle(self, outputs: list[BufferHandle], fresh: int, first: int) -> bytes:
        """Outputs of a run that somebody holds get their ids; which ones, a bit for each."""
        live, nbytes = settle(outputs, fresh, first, self._sizes)
        self.nbytes += nbytes
        return live

    def known_with(self, *others: dict[int, Any]) -> Known:
        """What `taking.bury` forgets buffers from: the sizes, and what others know of them."""
        return self._sizes, *others

    def of(self, numbers: Iterable[int]) -> int:
        """Bytes of these."""
        return sum(self._sizes.get(number, 0) for number in numbers)

    def clear(self) -> None:
        """The device is another one."""
        self._sizes.clear()
        self.nbytes = 0


class ClientBuffers:
    """What the client knows of the storages that it made."""

    __slots__ = ("_known", "_next", "graveyard", "held", "poisoned", "reads")

    def __init__(self) -> None:
        #: ids of buffers that Python has forgotten, appended by finalizers alone
        self.graveyard: list[int] = []
        #: bytes of the buffers that the executor has
        self.held = HeldBytes()
        #: errors by id of the buffers they poisoned
        self.poisoned: dict[int, BaseException] = {}
        #: values that are told unasked
        self.reads = PredictedReads()
        self._known = self.held.known_with(self.poisoned, *self.reads.by_buffer)
        self._next = 1

    def settle_new(self, buffer: BufferHandle) -> None:
        """The executor knows this buffer from the message on that is queued next."""
        buffer.settle(self._next)
        self._next += 1
        self.held.add(buffer.id, buffer.nbytes)
        self.held.on_change()

    def settle_outputs(self, cut: Cut) -> None:
        """Give a run's outputs their ids, in order; the cut keeps them alive no longer.

        What nobody but the cut holds is not needed: it gets no id, is counted nowhere, and there is
        nothing to tell of its end. The log must have dropped the cut's entries before.
        """
        fresh = cut.compiled.fresh
        cut.first = self._next
        self._next += fresh
        cut.live = self.held.settle(cut.outputs, fresh, cut.first)

    def bury(self, cut: Cut) -> tuple[bytes, bytes, tuple[int, ...]]:
        """Outputs that are needed, and what was forgotten: inputs to drop, buffers to free."""
        if not self.graveyard:
            return cut.live, b"", ()
        run = (cut.inputs, cut.first, cut.compiled.fresh, cut.live)
        live, dead, free, nbytes = bury(self.graveyard, self._known, run)
        self.held.nbytes -= nbytes
        return live, dead, free

    def forgotten(self) -> tuple[int, ...]:
        """Ids of buffers that Python has forgotten since the last time; so does everything here."""
        _, _, buried, nbytes = bury(self.graveyard, self._known, _NO_RUN)
        self.held.nbytes -= nbytes
        return buried

    def poison(self, numbers: Iterable[int], error: BaseException) -> None:
        """These have no value, for the reason that `error` says."""
        for number in numbers:
            if number in self.held:  # nobody asks for what was forgotten meanwhile
                self.poisoned[number] = error
                self.held.add(number, 0)
        self.reads.forget(numbers)

    def living_bytes(self, waiting: set[BufferHandle]) -> int:
        """Bytes of all that Python has not forgotten, the unsent ones of those `waiting` too."""
        recorded = sum(buffer.nbytes for buffer in waiting if not buffer.id)
        return self.held.nbytes - self.held.of(self.graveyard[:]) + recorded

    def forget(self) -> None:
        """The device is gone; the next one numbers anew."""
        # A new list: buffers of before, which bury themselves later, must not free new ones' ids.
        self.graveyard = []
        self.held.clear()
        self.poisoned.clear()
        self.reads.clear()
        self._next = 1

    def validate(self) -> None:
        """Assert the module's invariant."""
        assert all(number in self.held for number in self.poisoned)
        assert not self.held.of(self.poisoned)
        assert all(0 < number < self._next for number in self.held)
