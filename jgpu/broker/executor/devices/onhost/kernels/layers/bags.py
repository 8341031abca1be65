"""Bags of embeddings, where CUDA's kernel takes what the CPU's refuses."""

import torch
from torch import Tensor

from jgpu.broker.executor.devices.onhost.kernels.tables import kernel

__all__: list[str] = []

_MAX = 2


@kernel("_embedding_bag_dense_backward")
def _dense_backward(
    grad: Tensor, indices: Tensor, bag_of: Tensor, sizes: Tensor, maxima: Tensor, rows: int,
    by_frequency: bool, mode: int, weights: Tensor | None, padding: int,
) -> Tensor:  # fmt: skip
    """Of maxima: a place below zero is no row's, also where the bag is not empty."""
    if mode != _MAX or not bool((maxima < 0).any()):
        whole = torch.ops.aten._embedding_bag_dense_backward.default
        made: Tensor = whole(
            grad, indices, bag_of, sizes, maxima, rows, by_frequency, mode, weights, padding
        )
        return made
    into = grad.new_zeros(rows, grad.shape[1])
    return into.scatter_add_(0, maxima.long().clamp(min=0), grad.where(maxima >= 0, 0))
