"""Torch's global switches that change arithmetic: read at each cut, part of a program's hash.

A program has one set of switches, so what was recorded is cut where a switch changes
(`hooks.switches`). Reading never raises: torch's older getters do, where the newer interface set
what they cannot say, so precisions are read as the newer one resolves them.

Those of attention are read where a kernel is chosen, and are part of a program only where an op
chooses by itself (`attention`).
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import torch

from jgpu.wire.switches import ATTENTION, FLOAT32, Flags

__all__ = ["Preferred", "attention", "current", "recorded_under"]

_C: Any = torch._C

#: Field of `Flags`, and torch's getter of it; what a version of torch lacks has its default.
_FIELDS: Final = tuple(
    (field, getattr(_C, getter))
    for field, getter in (
        ("deterministic", "_get_deterministic_algorithms"),
        ("deterministic_warn_only", "_get_deterministic_algorithms_warn_only"),
        ("cudnn_enabled", "_get_cudnn_enabled"),
        ("cudnn_benchmark", "_get_cudnn_benchmark"),
        ("cudnn_deterministic", "_get_cudnn_deterministic"),
        ("depthwise", "_get_cudnn_depthwise_kernel"),
        ("carveout", "_get_sm_carveout_experimental"),
        ("fp16_reduced_precision", "_get_cublas_allow_fp16_reduced_precision_reduction"),
        ("bf16_reduced_precision", "_get_cublas_allow_bf16_reduced_precision_reduction"),
        ("fp16_accumulation", "_get_cublas_allow_fp16_accumulation"),
        ("mkldnn_enabled", "_get_mkldnn_enabled"),
        ("mkldnn_deterministic", "_get_mkldnn_deterministic"),
        ("nnpack_enabled", "_get_nnpack_enabled"),
        ("cpu_fp16_reduced_precision", "_get_cpu_allow_fp16_reduced_precision_reduction"),
    )
    if hasattr(_C, getter)
)
_NAMES: Final = tuple(field for field, _ in _FIELDS)
_GETTERS: Final = tuple(getter for _, getter in _FIELDS)
_LIBRARIES: Final = tuple(library for library, _ in FLOAT32)
_KINDS_OF_OP: Final = tuple(kind for _, kind in FLOAT32)
_precision: Final = _C._get_fp32_precision_getter
_default_dtype: Final = torch.get_default_dtype
#: torch's own order of attention's kernels
_ORDER: Final = _C._get_sdp_priority_order()


class Preferred:
    """CUDA's libraries, of which a build of torch without CUDA knows nothing."""

    #: for products of matrices, and for linear algebra
    libraries: tuple[str, str] = ("default", "default")


class _Last:
    """What was read last, with the switches that it says: together, for threads read at once."""

    seen: tuple[tuple[Any, ...], Flags] = ((), Flags())


#: what stands in for the switches as they are now, where a run is cut for others
_instead: Flags | None = None


def current() -> Flags:
    """The switches as they are now."""
    if _instead is not None:
        return _instead
    read = _read()
    seen, flags = _Last.seen
    if read != seen:
        flags = _flags(read)
        _Last.seen = read, flags
    return flags


def _read() -> tuple[Any, ...]:
    return (
        *[getter() for getter in _GETTERS],
        _default_dtype(),
        Preferred.libraries,
        *map(_precision, _LIBRARIES, _KINDS_OF_OP),
    )


def _flags(key: tuple[Any, ...]) -> Flags:
    told: dict[str, Any] = dict(zip(_NAMES, key, strict=False))
    for half in ("fp16", "bf16"):
        allowed = told[f"{half}_reduced_precision"]
        reduced, split_k = allowed if isinstance(allowed, tuple) else (allowed, True)
        told |= {f"{half}_reduced_precision": reduced, f"{half}_split_k": split_k}
    carveout = told.pop("carveout", None)
    dtype, (blas, linalg), *precisions = key[len(_NAMES) :]
    matmul, convolution, _, hosts, *_ = precisions
    return Flags(
        **told,
        # what torch's older switches would be, so that its older getters read it there
        matmul_precision="highest" if matmul != "tf32" else "medium" if hosts == "bf16" else "high",
        matmul_tf32=matmul == "tf32",
        cudnn_tf32=convolution == "tf32",
        carveout=-1 if carveout is None else carveout,
        default_dtype=str(dtype)[6:],
        blas=blas,
        linalg=linalg,
        float32=tuple(precisions),
    )


def attention() -> dict[str, Any]:
    """The fields of `Flags` that say which attention kernels are allowed, as they are now."""
    bits = 0
    for place, word in enumerate(ATTENTION):
        is_on = getattr(_C, f"_get_{word}_sdp_enabled", None)
        bits |= (is_on is not None and is_on()) << place
    order = _C._get_sdp_priority_order()
    return {
        "attention": bits,
        "attention_order": () if order == _ORDER else tuple(order),
        "attention_reduces": bool(_C._get_math_sdp_allow_fp16_bf16_reduction()),
    }


@contextmanager
def recorded_under(switches: Flags) -> Iterator[None]:
    """What is cut inside was recorded under these switches."""
    global _instead
    before, _instead = _instead, switches
    try:
        yield
    finally:
        _instead = before
