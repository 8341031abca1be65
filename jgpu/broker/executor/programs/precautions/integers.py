"""Whole numbers: the one quotient that does not exist.

The least integer divided by -1 is one more than the largest. Processors of the x86 family end the
process over it (SIGFPE); on CUDA it wraps around to the least integer again, and so it does here.
Division by zero raises in the kernels themselves.
"""

from typing import Any

import torch

from jgpu.broker.executor.programs.checking.ops import OpSchema
from jgpu.broker.executor.programs.checking.trusted import Look
from jgpu.broker.executor.programs.geometry import dtype_of
from jgpu.broker.executor.programs.precautions.language import Attempt, is_integral, precaution
from jgpu.wire.program import Geometry

__all__: list[str] = []

_LEAST = {torch.int32: -(1 << 31), torch.int64: -(1 << 63)}


def _divides_integers(info: OpSchema, look: Look) -> bool:
    rounded = "rounding_mode" in look.names and look["rounding_mode"] is not None
    if info.base.startswith("div") and not rounded:
        return False  # the quotient is a floating point number
    for name in ("self", "other"):
        value = look[name]
        if isinstance(value, Geometry) and not is_integral(dtype_of(value.dtype)):
            return False
        if isinstance(value, float | complex):
            return False
    other = look["other"]
    # A divisor is cast to the type of the result, so it is -1 for the kernel if its last bits are.
    return not isinstance(other, int) or (other + 1) % (1 << 32) == 0


@precaution(
    *("div", "divide", "floor_divide", "remainder", "fmod"),
    waits=True,
    when=_divides_integers,
    on=("cpu",),
)
def _divided(attempt: Attempt) -> Any:
    """Where it would overflow, divide by 1: the quotient is what wraps around, the rest is 0."""
    dividend, divisor = attempt["self"], attempt["other"]
    common = torch.result_type(dividend, divisor)
    least = _LEAST.get(common)
    if least is None:
        return attempt.go()
    if isinstance(divisor, int) and divisor >= 1 << 63:
        cast = torch.tensor(divisor - (1 << 64)).to(common)  # of the same last bits
    else:
        cast = torch.as_tensor(divisor).to(common)
    overflows = cast == -1
    if overflows.any():
        overflows = overflows & (torch.as_tensor(dividend).to(common) == least)
    if not overflows.any():
        return attempt.go()
    if isinstance(divisor, torch.Tensor):
        attempt["other"] = torch.where(overflows, 1, cast)
        return attempt.go()
    attempt["other"] = 1
    if attempt.base not in ("remainder", "fmod"):
        attempt["self"] = dividend.neg_() if attempt.in_place else dividend.neg()
    return attempt.go()
