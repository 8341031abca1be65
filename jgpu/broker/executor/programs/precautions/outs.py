"""`out`s that do not lie row by row: many kernels write such a tensor as if it did.

Softmax, poolings, triangles and others of the CPU take the first element's address and go on from
there, past the end of a tensor whose elements are expanded or in another order; natively that is
the memory of whoever wrote it. Here they fill a tensor of their own, which is copied. A test goes
through all ops that have an `out`.

Elementwise ops, reductions, factories and matrix products know strides; drawn numbers depend on
their order.
"""

from typing import Any, Final

import torch

from jgpu.broker.executor.programs.checking.ops import OpSchema
from jgpu.broker.executor.programs.checking.trusted import Look
from jgpu.broker.executor.programs.geometry import is_contiguous
from jgpu.broker.executor.programs.precautions.language import Attempt, Rule
from jgpu.wire.program import Geometry

__all__ = ["apart", "is_scattered"]

_KNOWING: Final = frozenset({"addmm", "addmv", "baddbmm", "bmm", "linalg_solve_triangular", "mm"})


def is_scattered(info: OpSchema, look: Look) -> bool:
    """Whether the op is to write an `out` that does not lie row by row, and may not know how."""
    tags = info.overload.tags
    if torch.Tag.pointwise in tags or torch.Tag.reduction in tags or info.seeded:
        return False
    if not info.takes_tensors:
        return False
    found = (look[a.name] for a in info.arguments if a.kwarg_only and a.written)
    scattered = any(isinstance(each, Geometry) and not is_contiguous(each) for each in found)
    return scattered and info.base not in _KNOWING


def apart(rule: Rule | None) -> Rule:
    """Has the op, under `rule` if it has one, fill tensors that lie row by row; they are copied."""

    def fill(attempt: Attempt) -> Any:
        given = {name: attempt[name] for name in attempt.outs}
        for name, out in given.items():
            if isinstance(out, torch.Tensor) and not out.is_contiguous():
                attempt[name] = torch.empty_like(out, memory_format=torch.contiguous_format)
        made = {name: attempt[name] for name in given}
        returned = attempt.go() if rule is None else rule(attempt)
        for name, out in given.items():
            if made[name] is not out:
                out.resize_(made[name].shape).copy_(made[name])
        if isinstance(returned, torch.Tensor):
            return _own(returned, made, given)
        return tuple(_own(each, made, given) for each in returned)

    return fill


def _own(returned: Any, made: dict[str, Any], given: dict[str, Any]) -> Any:
    """What was given in the place of what was made for it."""
    return next((given[name] for name in made if made[name] is returned), returned)
