"""What a call gave, as plain host data."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

__all__ = ["Told", "tell"]


@dataclass
class Told:
    """What a call gave: the leaves of what it returned, or what it raised."""

    leaves: list[Any]
    error: Exception | None = None


def tell(call: Callable[[], Any]) -> Told:
    """Call and take the result to the host."""
    try:
        return Told([_host(leaf) for leaf in tree_leaves(call())])
    except Exception as error:
        return Told([], error)


def _host(leaf: Any) -> Any:
    if not isinstance(leaf, torch.Tensor):
        return leaf
    where = leaf.detach()
    made = where.cpu()
    if made.layout is torch.strided:
        made = made.resolve_conj().resolve_neg()
        if made is where:
            made = made.clone()
        return made, leaf.stride(), leaf.requires_grad
    return made.to_dense(), tuple(leaf.shape), leaf.requires_grad
