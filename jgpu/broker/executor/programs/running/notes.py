"""Where guards note on the device that a value was wrong: a byte for each look.

A byte is written whatever the guard met, so nothing has to be cleared; once the bytes were copied,
in the order of the stream, their places are used again. What a byte stands for is kept on the host.

Covers the memory. When it is copied, and what follows from it, is `works.faults`'.
"""

from dataclasses import dataclass
from typing import Final

import torch

from jgpu.broker.executor.programs.buffers import Buffer
from jgpu.broker.executor.programs.checking.guards import Guard, Look, Mender
from jgpu.broker.executor.programs.checking.proofs import Proofs

__all__ = ["BLOCK", "ValueNote", "ValueNotes"]

#: looks noted in one block of memory: what a small copy takes at once
BLOCK: Final = 64


@dataclass(frozen=True, slots=True)
class ValueNote:
    """One look: of which work, at which op, at what."""

    work: int
    op: int
    guard: Guard


class ValueNotes:
    """One session's, of what was launched and not copied yet."""

    def __init__(self, device: torch.device, mender: Mender | None = None) -> None:
        self._device = device
        #: one kernel for the ops of a look; None where there is none
        self.mender = mender
        #: looks that the run which is being launched does not need
        self.proven: frozenset[Look] = frozenset()
        #: the session's last small uploads
        self.proofs = Proofs()
        #: the work that is being launched
        self.work = 0
        #: the looks, in the order of their places
        self.taken: list[ValueNote] = []
        #: memory, a block as one buffer
        self.blocks: list[Buffer] = []
        self._places: list[torch.Tensor] = []

    def place(self, op: int, guard: Guard) -> torch.Tensor:
        """One bool for a look that is about to be made."""
        at = len(self.taken)
        if at == len(self._places):
            self._grow()
        self.taken.append(ValueNote(self.work, op, guard))
        return self._places[at]

    def forget(self) -> list[ValueNote]:
        """The looks until now, which are being copied; their places are free."""
        taken, self.taken = self.taken, []
        return taken

    def clear(self) -> list[Buffer]:
        """Give all memory back; nothing is noted any more."""
        self.taken.clear()
        self._places.clear()
        blocks, self.blocks = self.blocks, []
        return blocks

    def _grow(self) -> None:
        block = torch.zeros(BLOCK, dtype=torch.bool, device=self._device)
        self.blocks.append(Buffer(0, block))
        self._places.extend(block.unbind())
