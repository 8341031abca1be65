"""What CUDA's kernels leave unset in what they return: there it holds what a neighbour left.

So whoever shows it to a program shows a neighbour's memory, here as there.
"""

from typing import Any, Final

import torch

__all__ = ["STALE", "unset"]

#: what memory holds that nobody has written
STALE: Final = 0x5A


def unset(*shape: int, dtype: torch.dtype) -> torch.Tensor:
    """A tensor that nobody has written."""
    made = torch.empty(shape, dtype=dtype)
    flat: Any = made.view(-1).view(torch.uint8)
    flat.fill_(STALE)
    return made
