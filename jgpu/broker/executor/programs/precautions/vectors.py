"""Vectors of channels that lie apart, which kernels of CUDA may take for dense ones.

Batch norm's kernels for channels in the last place, and cuDNN's, read such vectors by their
addresses: behind one whose elements are all in one place lies what is others'. Those of the CPU
go by strides.
"""

from typing import Any, Final

from jgpu.broker.executor.programs.checking.ops import OpSchema
from jgpu.broker.executor.programs.checking.trusted import Look
from jgpu.broker.executor.programs.geometry import is_contiguous
from jgpu.broker.executor.programs.precautions.language import Attempt, precaution

__all__: list[str] = []

_VECTORS: Final = ("weight", "bias", "running_mean", "running_var")


def _apart(info: OpSchema, look: Look) -> bool:
    return any(name in look and not is_contiguous(look[name]) for name in _VECTORS)


@precaution(
    *("native_batch_norm", "_native_batch_norm_legit", "_native_batch_norm_legit_functional"),
    "_native_batch_norm_legit_no_training",
    waits=False,
    when=_apart,
    on=("cuda",),
)
def _with_dense_vectors(attempt: Attempt) -> Any:
    """Pass dense copies. Vectors that training writes are dense by contract and are not copied."""
    for name in _VECTORS:
        if name in attempt and attempt[name] is not None:
            attempt[name] = attempt[name].contiguous()
    return attempt.go()
