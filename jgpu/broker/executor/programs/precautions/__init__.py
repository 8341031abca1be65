"""Precautions: rules for kernels that some values crash, or keep running for ever.

In native PyTorch such a value ends the user's own process; here all users share the process. Each
kernel known to do so has a rule. It keeps all results of native PyTorch, with two exceptions that
are documented at their rules: a division that overflows wraps around, as on CUDA, and a call that
would take longer than minutes because of a value is refused.

A test that tries hostile values on all ops found these kernels, and runs regularly.
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
    """Return the callable that replaces the op on this kind of device; None for harmless ops."""
    rule, waits = None, False
    if found := PRECAUTIONS.get(info.base.removesuffix("_")):
        family = "cuda" if KINDS[device].has_cuda_kernels else device
        if family in found.devices and found.when(info, look):
            rule, waits = found.rule, found.waits
    if KINDS[device].computes and outs.is_scattered(info, look):
        rule = outs.apart(rule)
    return Precaution(info, rule, waits) if rule is not None else None
