"""Scaled dot-product attention and its gradients, for every kernel of it.

Tensors are (batch, heads, length, features), in the type of the computation. The forward returns
the logarithm of each row's sum, from which, and from its output, the backward finds the weights
again: Dao et al., "FlashAttention" (2022), appendix B. Several heads of the query may share one of
key and value.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["Scores", "backward", "forward", "given_scale", "shared_heads", "wide"]


def wide(dtype: torch.dtype) -> torch.dtype:
    """The type in which tensors of this one are computed."""
    return torch.float64 if dtype is torch.float64 else torch.float32


def given_scale(query: Tensor, scale: float | None) -> float:
    """What scores are multiplied by."""
    return 1 / math.sqrt(query.shape[-1]) if scale is None else scale


def shared_heads(tensor: Tensor, heads: int) -> Tensor:
    """A key or a value with a head for each of the query's."""
    if tensor.shape[1] == heads:
        return tensor
    if tensor.shape[1] == 0 or heads % tensor.shape[1]:
        raise RuntimeError("Number of heads in key/value must divide number of heads in query")
    return tensor.repeat_interleave(heads // tensor.shape[1], 1)


@dataclass(frozen=True, slots=True)
class Scores:
    """What a kernel does with scores, before and after they become weights."""

    scale: float
    #: added to the scores, and broadcast to them
    bias: Tensor | None = None
    #: (length, keys), true where a query sees a key
    seen: Tensor | None = None
    #: (batch, heads, length, keys), true where a weight is kept
    kept: Tensor | None = None
    dropout: float = 0.0

    def of(self, query: Tensor, key: Tensor) -> Tensor:
        """Scores of queries and keys, minus infinity where one does not see the other."""
        made = query @ key.transpose(-1, -2) * self.scale
        if self.bias is not None:
            made = made + self.bias.to(made.dtype)
        return made if self.seen is None else made.masked_fill(~self.seen, -math.inf)

    def dropped(self, weights: Tensor) -> Tensor:
        """Weights, or gradients of what they became, after dropout."""
        if self.kept is None:
            return weights
        scale = 0.0 if self.dropout == 1 else 1 / (1 - self.dropout)
        return weights * self.kept * scale


def forward(
    query: Tensor, key: Tensor, value: Tensor, scores: Scores
) -> tuple[Tensor, Tensor, Tensor]:
    """Output, the logarithm of each row's sum, and weights before dropout.

    A query that sees nothing has the output 0 and the logarithm +infinity.
    """
    heads = query.shape[1]
    found = scores.of(query, shared_heads(key, heads))
    sums = found.logsumexp(-1)
    sums = sums.masked_fill(sums == -math.inf, math.inf)
    weights = (found - sums.unsqueeze(-1)).exp()
    return scores.dropped(weights) @ shared_heads(value, heads), sums, weights


def backward(
    grad: Tensor, tensors: tuple[Tensor, Tensor, Tensor], out: Tensor, sums: Tensor, scores: Scores
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients of query, key and value, and of the scores (that is, of what is added to them)."""
    query, key, value = tensors
    heads = query.shape[1]
    keys, values = shared_heads(key, heads), shared_heads(value, heads)
    weights = (scores.of(query, keys) - sums.unsqueeze(-1)).exp()
    grad_value = scores.dropped(weights).transpose(-1, -2) @ grad
    of_weights = scores.dropped(grad @ values.transpose(-1, -2))
    of_scores = weights * (of_weights - (grad * out).sum(-1, True))
    grad_query = of_scores @ keys * scores.scale
    grad_key = of_scores.transpose(-1, -2) @ query * scores.scale
    return (
        grad_query,
        _summed(grad_key, key.shape[1]),
        _summed(grad_value, value.shape[1]),
        of_scores,
    )


def _summed(grad: Tensor, heads: int) -> Tensor:
    """The gradient of a key's or value's head, of all the query's heads that shared it."""
    return grad if grad.shape[1] == heads else grad.unflatten(1, (heads, -1)).sum(2)
