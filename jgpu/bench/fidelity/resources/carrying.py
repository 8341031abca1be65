"""Copies of a sample for each side: same bits, strides and sharing of memory with nothing."""

from typing import Any

import torch

_NARROW = (torch.float32, torch.bfloat16, torch.float16)


def carry(value: Any, device: str) -> Any:
    """A tree with every tensor copied to `device`, and `device=` arguments with it."""
    if isinstance(value, torch.nn.Parameter):
        return torch.nn.Parameter(_tensor(value, device), value.requires_grad)
    if isinstance(value, torch.Tensor):
        made = _tensor(value, device)
        return made.requires_grad_(True) if value.requires_grad else made
    if isinstance(value, torch.device):
        return torch.device(device) if value.type == "cpu" else value
    if isinstance(value, dict):
        return {
            key: device if key == "device" and each == "cpu" else carry(each, device)
            for key, each in value.items()
        }
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(carry(each, device) for each in value))
    if isinstance(value, torch.nn.utils.rnn.PackedSequence):
        packed: Any = value  # its `to` is annotated as if it took dtypes alone
        return packed.to(device)
    if isinstance(value, list | tuple) and type(value) in (list, tuple):
        return type(value)(carry(each, device) for each in value)
    return value


def _tensor(value: torch.Tensor, device: str) -> torch.Tensor:
    plain = value.detach()
    if plain.layout is not torch.strided:
        return plain.clone() if device == "cpu" else plain.to(device)
    if plain.is_conj() or plain.is_neg():
        made = _tensor(plain.conj() if plain.is_conj() else torch._neg_view(plain), device)
        return made.conj() if plain.is_conj() else torch._neg_view(made)
    if torch._prims_common.is_non_overlapping_and_dense_or_false(plain):
        return plain.clone() if device == "cpu" else plain.to(device)
    whole = torch.empty(0, dtype=plain.dtype).set_(plain.untyped_storage()).clone().to(device)
    return whole.as_strided(plain.shape, plain.stride(), plain.storage_offset())


def widened(value: Any, to: torch.dtype = torch.float64) -> Any:
    """A tree of the host with every tensor of single precision or less in double, or as said."""
    from torch.utils._pytree import tree_map

    def wide(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor) or leaf.dtype not in _NARROW:
            return leaf
        return leaf.detach().to(to).requires_grad_(leaf.requires_grad)

    return tree_map(wide, value)


def leaves_with_grad(*trees: Any) -> list[torch.Tensor]:
    """Tensors that want a gradient."""
    from torch.utils._pytree import tree_leaves

    found = []
    for tree in trees:
        found += [
            leaf for leaf in tree_leaves(tree)
            if isinstance(leaf, torch.Tensor) and leaf.requires_grad
        ]  # fmt: skip
    return found


def gradients(result: Any, inputs: list[torch.Tensor], drawn: torch.dtype | None = None) -> Any:
    """Gradients of `inputs` for the same random cotangents on both sides, each with its output.

    What a sample moves to the device lies there on both sides. Cotangents are drawn in the type of
    their output, or in `drawn`.
    """
    from torch.utils._pytree import tree_leaves

    outputs = [
        leaf for leaf in tree_leaves(result)
        if isinstance(leaf, torch.Tensor) and leaf.requires_grad
    ]  # fmt: skip
    if not outputs or not inputs:
        return None
    chance = torch.Generator().manual_seed(1)
    cotangents = [
        torch.randn(o.shape, dtype=drawn or o.dtype, generator=chance).to(o.device, o.dtype)
        for o in outputs
    ]
    return torch.autograd.grad(outputs, inputs, cotangents, allow_unused=True)
