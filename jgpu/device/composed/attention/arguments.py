"""What torch makes of attention's arguments before it chooses a kernel, whatever the device."""

import functools
from contextlib import suppress
from typing import Any, Final

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

__all__ = ["MASKED", "additive", "with_a_batch"]

MASKED: Final = float("-inf")
#: of tensors that have a batch, and of those to which newer releases of torch give one
_BATCHED, _BARE = 4, 3
_aten: Any = torch.ops.aten


class _Ended(Exception):
    """A composite has called its first op."""


class _FirstOp(TorchDispatchMode):
    """Ends a composite at the first op that it calls, which is noted."""

    op: Any = None

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        self.op = func
        raise _Ended


def with_a_batch(tensors: tuple[Tensor, ...]) -> tuple[Tensor, ...] | None:
    """Query, key, value, and a mask if there is one, as torch gives them a batch of one.

    None where it gives them none: where not all three lack it, or in releases that choose a kernel
    for them as they are. What is computed loses its first dimension again, if that is one.
    """
    if any(each.dim() != _BARE for each in tensors[:3]) or not _gives_a_batch():
        return None
    return (*(each.unsqueeze(0) for each in tensors[:3]), *map(_widened, tensors[3:]))


def _widened(mask: Tensor) -> Tensor:
    while mask.dim() < _BATCHED:
        mask = mask.unsqueeze(0)
    return mask


@functools.cache
def _gives_a_batch() -> bool:
    """Whether this torch does: its composite is run on the host, as far as its first op."""
    first = _FirstOp()
    # a transform would take the host's tensors for those of its function
    with torch._C._DisableFuncTorch():
        tensor = torch.empty((1,) * _BARE, device="cpu")
        with suppress(_Ended), first:
            _aten.scaled_dot_product_attention.default.decompose(tensor, tensor, tensor)
    return first.op is _aten.unsqueeze.default


def additive(mask: Tensor | None, dtype: torch.dtype, least: float) -> Tensor | None:
    """A mask of booleans as numbers that are added to the scores."""
    if mask is None or mask.dtype is not torch.bool:
        return mask
    return torch.zeros_like(mask, dtype=dtype).masked_fill_(mask.logical_not(), least)
