"""Solving with factors of matrices: batches that kernels walk without a look.

Pivots are looked at before each run (`programs.guards`); shapes here.
"""

from math import prod

import torch

from jgpu.broker.executor.programs.contracts.language import Call, contract

__all__: list[str] = []


@contract("linalg_ldl_solve")
def _ldl_solve(call: Call) -> None:
    """The kernel steps through `LD` and `pivots` once for each matrix of the broadcast batch.

    It takes the step from the dimension next to the matrices, which says nothing if it has one
    element. All else (squares, types, pivots beside LD) is seen by the structured op's meta kernel.
    """
    factors, pivots, right = call["LD"], call["pivots"], call["B"]
    call.require(pivots.dtype in (torch.int32, torch.int64), "pivots must be int32 or int64")
    call.require(factors.dim() >= 2 and right.dim() >= 2, "it takes matrices")
    count = factors.shape[-1]
    call.shaped("pivots", factors.shape[:-1])
    batch = factors.shape[:-2]
    if not batch:
        return
    together = torch.broadcast_shapes(batch, right.shape[:-2])
    call.require(tuple(batch) == tuple(together), "LD must have the whole batch, B is larger")
    if prod(batch) > 1:
        for tensor, plain, at, step in (
            (factors, factors.mT, -3, count * count),
            (pivots, pivots, -2, count),
        ):
            sure = not plain.is_contiguous() or tensor.stride(at) == step
            call.require(sure, "its batch has a stride of its own")
