"""Split a tensor into many pieces of given sizes in linear time.

Autograd keeps a copy of all sizes with each piece of `split_with_sizes` where a tensor is not
the host's own, to replay the view: n pieces take n * n numbers of memory. So a long list of sizes
is split into groups, and each group into its pieces. The pieces are the same views, and their
gradients are joined in the same order.

Does not cover lists of at most `GROUP` sizes, nor calls that raise: torch's own function is called.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any, Final

import torch

from jgpu.device.tensor import device
from jgpu.device.tracebacks import unseen

__all__ = ["GROUP", "install"]

#: Most sizes of one call of torch's function.
GROUP: Final = 64


def install() -> None:
    """Replace torch's functions that split by a list of sizes."""
    for target, name in (
        (torch.Tensor, "split"),
        (torch.Tensor, "split_with_sizes"),
        (torch, "split_with_sizes"),
    ):
        setattr(target, name, unseen(_grouping(getattr(target, name))))


def _grouping(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def split(*args: Any, **kwargs: Any) -> Any:
        if len(args) > 1:
            tensor, sizes = args[:2]
            if isinstance(sizes, list | tuple) and len(sizes) > GROUP and not kwargs:
                dim = args[2] if len(args) == 3 else 0
                if _can_group(tensor, sizes, dim):
                    return tuple(_pieces(original, tensor, sizes, dim))
        return original(*args, **kwargs)

    return split


def _can_group(tensor: Any, sizes: Sequence[Any], dim: Any) -> bool:
    """Whether it is a tensor of the device, and torch would not raise."""
    if not isinstance(tensor, torch.Tensor) or tensor.device != device() or type(dim) is not int:
        return False
    if not all(type(size) is int and size >= 0 for size in sizes):
        return False
    rank = tensor.dim()
    return -rank <= dim < rank and sum(sizes) == tensor.shape[dim]


def _pieces(
    original: Callable[..., Any], tensor: Any, sizes: Sequence[int], dim: int
) -> list[torch.Tensor]:
    if len(sizes) <= GROUP:
        return list(original(tensor, sizes, dim))
    step = GROUP
    while step * GROUP < len(sizes):
        step *= GROUP
    groups = [sizes[at : at + step] for at in range(0, len(sizes), step)]
    parts = original(tensor, [sum(group) for group in groups], dim)
    return [
        piece
        for part, group in zip(parts, groups, strict=True)
        for piece in _pieces(original, part, group, dim)
    ]
