"""Dot products of rows, added up in the order of native torch's kernels on the CPU."""

import functools
import warnings
from typing import Final

import torch

__all__ = ["dots"]

#: bytes of the vectors in which native kernels add up
_VECTOR: Final = 32


def dots(a: torch.Tensor, b: torch.Tensor, *, reduced: bool = False) -> torch.Tensor:
    """Row by row dot products of [n, k] and [n, k].

    In the order of `at::vec::map2_reduce_all` (ATen/cpu/vec/functional_base.h): lanes of one
    vector, then across. `reduced`: as the gradient of a product's sums has them.
    """
    terms = a * b
    rows, count = terms.shape
    lanes = _VECTOR // terms.element_size()
    whole = count // lanes * lanes
    if not whole:
        return _one_after_another(terms)
    line = torch.arange(rows * (whole // lanes), device=terms.device)
    line = line.div(whole // lanes, rounding_mode="floor")
    total = terms.new_zeros(rows, lanes).index_add(0, line, terms[:, :whole].reshape(-1, lanes))
    if rest := count - whole:
        first, last = total.split([rest, lanes - rest], 1)
        tail = a[:, whole:], b[:, whole:]
        rounds_once = reduced and _rounds_tails_once()
        first = torch.addcmul(first, *tail) if rounds_once else first + terms[:, whole:]
        total = torch.cat([first, last], 1)
    if terms.dtype is not torch.float32:
        return _one_after_another(total)
    while total.shape[1] > 1:
        low, high = total.chunk(2, 1)
        total = low + high
    return total[:, 0]


def _one_after_another(terms: torch.Tensor) -> torch.Tensor:
    """The sum of a few columns."""
    if not terms.shape[1]:
        return terms.sum(1)
    total, *others = terms.unbind(1)
    for column in others:
        total = total + column
    return total


@functools.cache
def _rounds_tails_once() -> bool:
    """Whether what is left behind the last whole vector is multiplied and added in one rounding.

    As the compiler of this torch had it, so its kernel is asked: -1 + (1 + 2^-12)^2 has its last
    bit then. In 2.13 it has, in 2.11 it has not.
    """
    row = torch.zeros(1, _VECTOR // 4 + 1, dtype=torch.float32, device="cpu")
    row[0, -1] = 1 + 2**-12
    other = row.clone()
    row[0, 0], other[0, 0] = -1, 1
    place = torch.zeros(1, dtype=torch.long, device="cpu")
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")  # that sparse tensors are young
        one = torch.sparse_csr_tensor(
            torch.tensor([0, 1], device="cpu"), place, row.new_ones(1), (1, 1)
        )
        found, _ = torch.ops.aten._sparse_mm_reduce_impl_backward(
            one, row, other, "sum", place, [True, False]
        )
    return bool(found.values()[0].item() > 2**-11)
