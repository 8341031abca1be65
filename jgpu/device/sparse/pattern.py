"""Where the entries of a compressed sparse tensor stand.

Batches, blocks and dense dimensions are laid out as torch lays them out; what is said of blocks
holds for CSR and CSC with blocks of one by one.
"""

from dataclasses import dataclass
from math import prod
from typing import Final

import torch

from jgpu.device.tensor import CUDA

__all__ = ["BLOCKED", "LAYOUTS", "Pattern"]

#: the names of the compressed and the plain indices of a layout
LAYOUTS: Final = {
    torch.sparse_csr: ("crow", "col"),
    torch.sparse_csc: ("ccol", "row"),
    torch.sparse_bsr: ("crow", "col"),
    torch.sparse_bsc: ("ccol", "row"),
}
#: layouts whose values have two dimensions of blocks
BLOCKED: Final = (torch.sparse_bsr, torch.sparse_bsc)
_OTHER_WAY: Final = {
    torch.sparse_csr: torch.sparse_csc,
    torch.sparse_csc: torch.sparse_csr,
    torch.sparse_bsr: torch.sparse_bsc,
    torch.sparse_bsc: torch.sparse_bsr,
}


@dataclass(frozen=True, eq=False)
class Pattern:
    """Where entries stand: compressed [batch ..., lines + 1], plain [batch ..., entries]."""

    compressed: torch.Tensor
    plain: torch.Tensor
    layout: torch.layout
    #: of the whole: batch, rows, columns, dense dimensions
    shape: tuple[int, ...]
    #: rows and columns of one entry
    block: tuple[int, int]

    @property
    def by_rows(self) -> bool:
        """Whether rows are compressed."""
        return LAYOUTS[self.layout][0] == "crow"

    @property
    def blocked(self) -> bool:
        """Whether values have two dimensions of blocks."""
        return self.layout in BLOCKED

    @property
    def batch(self) -> tuple[int, ...]:
        """Extents of the batch."""
        return tuple(self.plain.shape[:-1])

    @property
    def matrix(self) -> tuple[int, int]:
        """Rows and columns."""
        count = len(self.batch)
        return self.shape[count], self.shape[count + 1]

    @property
    def dense(self) -> tuple[int, ...]:
        """Extents of the dense dimensions."""
        return self.shape[len(self.batch) + 2 :]

    @property
    def grid(self) -> tuple[int, int, int]:
        """Batches, rows of blocks, columns of blocks."""
        (rows, columns), (high, wide) = self.matrix, self.block
        return prod(self.batch), rows // max(high, 1), columns // max(wide, 1)

    def places(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Row and column of each entry (of each block), [batch ..., entries]."""
        count = self.plain.shape[-1]
        numbers = torch.arange(count, device=CUDA).expand(self.plain.shape).contiguous()
        ends = self.compressed[..., 1:].to(torch.int64).contiguous()
        lines = torch.searchsorted(ends, numbers, right=True)
        plain = self.plain.to(torch.int64)
        return (lines, plain) if self.by_rows else (plain, lines)

    def flat(self) -> torch.Tensor:
        """One number per entry: where its block stands among all, [batch * entries]."""
        batches, high, wide = self.grid
        rows, columns = self.places()
        place = (rows * wide + columns).reshape(batches, -1)
        if batches > 1:
            place = place + (torch.arange(batches, device=CUDA) * (high * wide)).view(-1, 1)
        return place.reshape(-1)

    def turned(self) -> "Pattern":
        """Of the transposed matrix: the same indices, read the other way."""
        at = len(self.batch)
        rows, columns = self.matrix
        shape = (*self.shape[:at], columns, rows, *self.dense)
        other = _OTHER_WAY[self.layout]
        return Pattern(self.compressed, self.plain, other, shape, self.block[::-1])
