"""What is known of a buffer's bytes because they passed the host: indices that need no look.

A few bytes that a session uploaded are kept as they came, and looked at where a guard asks. What is
known holds as long as nothing has written the buffer, which whoever launches what may write it has
to say, by dropping the proof.

Invariant: a proof is of all bytes of one storage, and is gone before anything that may change a
byte of it is launched.
"""

from collections import deque
from typing import TYPE_CHECKING, Final

import numpy as np
import torch

from jgpu.broker.executor.programs.checking.guards import IndexGuard, Look

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jgpu.broker.executor.programs.buffers import Buffer
    from jgpu.broker.executor.programs.plan import ProgramPlan

__all__ = ["PROVABLE_BYTES", "Proof", "Proofs", "forget", "proven"]

#: bytes of a buffer that are kept, and how many such buffers of a session
PROVABLE_BYTES: Final = 32 << 10
_KEPT: Final = 32
#: guards of which a proof remembers whether they hold
_ANSWERS: Final = 8
_TYPES: Final = {
    torch.int64: np.int64,
    torch.int32: np.int32,
    torch.int16: np.int16,
    torch.int8: np.int8,
    torch.uint8: np.uint8,
}


class Proof:
    """The bytes of one buffer, as they were uploaded."""

    __slots__ = ("_answers", "_data")

    def __init__(self, data: bytes) -> None:
        self._data: bytes | None = data
        self._answers: dict[tuple[torch.dtype, IndexGuard], bool] = {}

    def holds(self, dtype: torch.dtype, guard: IndexGuard) -> bool:
        """Whether all numbers of this type that lie in it are what a guard asks for.

        False where nobody can tell any more.
        """
        key = dtype, guard
        found = self._answers.get(key)
        if found is None:
            if self._data is None or dtype not in _TYPES or len(self._answers) >= _ANSWERS:
                return False
            found = self._answers[key] = _all_within(self._data, dtype, guard)
        return found

    def drop_bytes(self) -> None:
        """Keep the answers alone."""
        self._data = None


def _all_within(data: bytes, dtype: torch.dtype, guard: IndexGuard) -> bool:
    kind = _TYPES[dtype]
    values = np.frombuffer(data, kind, count=len(data) // np.dtype(kind).itemsize)
    if not values.size:
        return True
    if guard.low <= int(values.min()) and int(values.max()) < guard.high:
        return True
    if guard.ignored is None:
        return False
    within = (values >= guard.low) & (values < guard.high)
    return bool((within | (values == guard.ignored)).all())


class Proofs:
    """Of one session: the bytes of its last small uploads."""

    def __init__(self) -> None:
        self._kept: deque[Proof] = deque()

    def of(self, data: bytes) -> Proof | None:
        """A proof for a storage that is filled with these bytes, if they are few."""
        if not data or len(data) > PROVABLE_BYTES:
            return None
        made = Proof(data)
        self._kept.append(made)
        if len(self._kept) > _KEPT:
            self._kept.popleft().drop_bytes()
        return made


def proven(plan: "ProgramPlan", buffers: "Sequence[Buffer]") -> frozenset[Look]:
    """The looks of a program that are not needed with these inputs."""
    found = []
    for provable in plan.provable:
        proof = buffers[provable.slot].proof
        if proof is not None and proof.holds(provable.dtype, provable.guard):
            found.append(provable.look)
    return frozenset(found)


def forget(plan: "ProgramPlan", buffers: "Sequence[Buffer]") -> None:
    """A program is launched that may write these of its inputs."""
    for slot in plan.changed:
        buffers[slot].proof = None
