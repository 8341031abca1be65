"""The storages that one generation has on the device: ids, bytes, values, and which are poisoned.

Finalizers append the ids of what Python forgot to `graveyard`, and do nothing else. A lost
generation's buffers keep its graveyard, so that what they append later frees nothing of the next.

Invariant: what is poisoned is held, and counts no bytes (`validate`).
"""

from collections.abc import Callable, Iterable, Iterator
from itertools import repeat
from sys import getrefcount
from typing import Final

from jgpu.device.client.notebook.wanted import PredictedReads
from jgpu.device.recording.recorder import Cut
from jgpu.device.tensor import BufferHandle

__all__ = ["ClientBuffers", "HeldBytes"]


def _references(buffers: list[BufferHandle]) -> list[int]:
    """How many references there are to each, those that counting takes among them."""
    return list(map(getrefcount, buffers))


#: what is counted where only the list holds it; versions of Python differ
_ALONE: Final = _references([BufferHandle(0, [])])[0]


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

    def drop(self, numbers: Iterable[int]) -> None:
        """These are not needed any more."""
        self.nbytes -= sum(map(self._sizes.pop, numbers, repeat(0)))

    def of(self, numbers: Iterable[int]) -> int:
        """Bytes of these."""
        return sum(self._sizes.get(number, 0) for number in numbers)

    def clear(self) -> None:
        """The device is another one."""
        self._sizes.clear()
        self.nbytes = 0


class ClientBuffers:
    """What the client knows of the storages that it made."""

    __slots__ = ("_next", "graveyard", "held", "poisoned", "reads")

    def __init__(self) -> None:
        #: ids of buffers that Python has forgotten, appended by finalizers alone
        self.graveyard: list[int] = []
        #: bytes of the buffers that the executor has
        self.held = HeldBytes()
        #: errors by id of the buffers they poisoned
        self.poisoned: dict[int, BaseException] = {}
        #: values that are told unasked
        self.reads = PredictedReads()
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
        outputs, cut.outputs = cut.outputs, []
        number = cut.first = self._next
        self._next += cut.compiled.fresh
        add = self.held.add
        for references in _references(outputs):
            if references > _ALONE:
                buffer = outputs[number - cut.first]
                buffer.settle(number)
                add(number, buffer.nbytes)
                cut.live |= 1 << (number - cut.first)
            number += 1

    def bury(self, cut: Cut) -> tuple[bytes, bytes, tuple[int, ...]]:
        """Outputs that are needed, and what was forgotten: inputs to drop, buffers to free."""
        first, fresh, inputs = cut.first, cut.compiled.fresh, cut.inputs
        end, live, dead = first + fresh, cut.live, 0
        free: list[int] = []
        places: dict[int, int] | None = None
        for number in self.forgotten():
            if first <= number < end:
                live &= ~(1 << (number - first))  # forgotten since it was settled
                continue
            if places is None:
                places = {id_: at for at, id_ in enumerate(inputs)}
            at = places.get(number)
            if at is not None:
                dead |= 1 << at
            else:
                free.append(number)
        return (
            live.to_bytes((fresh + 7) >> 3, "little"),
            dead.to_bytes((len(inputs) + 7) >> 3, "little") if dead else b"",
            tuple(free),
        )

    def forgotten(self) -> list[int]:
        """Ids of buffers that Python has forgotten since the last time; so does everything here."""
        graveyard = self.graveyard
        buried = graveyard[:]
        if buried:
            del graveyard[: len(buried)]
            self.held.drop(buried)
            self.reads.forget(buried)
            if self.poisoned:
                for number in buried:
                    self.poisoned.pop(number, None)
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
