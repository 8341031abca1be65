"""Precautions: what is done before kernels that some values would kill, or keep for ever.

Natively such a value ends the program of whoever wrote it; here the process is everybody's. A rule
stands before each kernel of which that is known. It changes nothing about values that natively
give a result, but for two things that are said where they are done: a division that overflows wraps
around, as on CUDA, and a call that would take longer than minutes because of a value is refused.

Which kernels these are was found by trying hostile values on all ops; a test goes on doing so.
"""

from jgpu.broker.executor.programs.checking.ops import OpSchema
from jgpu.broker.executor.programs.checking.trusted import Look
from jgpu.broker.executor.programs.kinds import KINDS
from jgpu.broker.executor.programs.precautions import (
    draws,
    inside,
    integers,
    matrices,
    orders,
    outs,
    places,
    sizes,
    unset,
    vectors,
)
from jgpu.broker.executor.programs.precautions.language import PRECAUTIONS, Precaution

__all__ = [
    "PRECAUTIONS",
    "Precaution",
    "draws",
    "inside",
    "integers",
    "matrices",
    "orders",
    "outs",
    "places",
    "precaution_of",
    "sizes",
    "unset",
    "vectors",
]


def precaution_of(info: OpSchema, look: Look, device: str) -> Precaution | None:
    """What to call instead of the op on a device of this kind; None where the op is harmless."""
    rule, waits = None, False
    if found := PRECAUTIONS.get(info.base.removesuffix("_")):
        family = "cuda" if KINDS[device].has_cuda_kernels else device
        if family in found.devices and found.when(info, look):
            rule, waits = found.rule, found.waits
    if KINDS[device].computes and outs.is_scattered(info, look):
        rule = outs.apart(rule)
    return Precaution(info, rule, waits) if rule is not None else None
