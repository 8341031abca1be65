"""When Python looks for garbage in circles: not among very many buffers.

A full collection looks at every object that is alive. With a million buffers it takes seconds, in
which the pump hears nobody. While there are so many, what is alive is set aside at each look
(`gc.freeze`, which takes no time); it is freed as ever when nobody refers to it. When there are few
again, all is looked through once for circles that came about meanwhile.
"""

import gc
from collections.abc import Callable
from typing import Final

__all__ = ["LongLived"]

#: buffers of all sessions from which on, and below which again, collections look at all
_MANY: Final = 100_000
_FEW: Final = 50_000


class LongLived:
    """The objects of one executor."""

    def __init__(self, count: Callable[[], int]) -> None:
        """`count` says how many buffers there are."""
        self._count = count
        self._has_many = False

    def look(self) -> None:
        """To be called several times a second while anything happens."""
        count = self._count()
        if count >= _MANY:
            self._has_many = True
            gc.freeze()
        elif self._has_many and count < _FEW:
            self._has_many = False
            gc.unfreeze()
            gc.collect()
            gc.freeze()
