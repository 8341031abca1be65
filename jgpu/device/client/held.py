"""Bytes of the storages that the executor has for this process, small ones among them.

By id, from when a program or an upload that makes a storage is sent until it was said that nobody
needs it. What is recorded and not sent yet is not counted here (`largest` does).
"""

from collections.abc import Callable, Iterable
from itertools import count, repeat

__all__ = ["HeldBytes"]


class HeldBytes:
    """Sizes by id, and their sum."""

    def __init__(self) -> None:
        self._sizes: dict[int, int] = {}
        #: sum of the sizes; what was forgotten and not yet told is in it
        self.nbytes = 0
        #: called when storages became known, or were forgotten
        self.on_change: Callable[[], None] = lambda: None

    def __contains__(self, number: int) -> bool:
        return number in self._sizes

    def __len__(self) -> int:
        return len(self._sizes)

    def add(self, number: int, nbytes: int) -> None:
        """The executor has, or will have, a storage of this size; again where it has another."""
        self.nbytes += nbytes - self._sizes.get(number, 0)
        self._sizes[number] = nbytes

    def add_new(self, first: int, sizes: list[int]) -> None:
        """The executor will have storages of these sizes, numbered from `first` on."""
        self._sizes.update(zip(count(first), sizes, strict=False))
        self.nbytes += sum(sizes)

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
