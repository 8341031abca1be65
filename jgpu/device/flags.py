"""Torch's global switches that change arithmetic: read at each cut, part of a program's hash.

A program has one set of switches, so what was recorded is cut where a switch changes
(`hooks.switches`). Reading never raises: torch's older getters do, where the newer interface set
what they cannot say, so precisions are read as the newer one resolves them.

Those of attention are read where a kernel is chosen, and are part of a program only where an op
chooses by itself (`attention`).
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import torch

from jgpu.accelerator import loading
from jgpu.wire.switches import ATTENTION, FLOAT32, Flags

__all__ = [
    "Preferred",
    "attention",
    "attention_order",
    "current",
    "read_all",
    "read_in_python",
    "recorded_under",
]

_C: Any = torch._C
#: a function, and what it is given
Call = tuple[Callable[..., Any], tuple[Any, ...]]

#: Field of `Flags`, and torch's getter of it; what a version of torch lacks has its default.
#: `cudnn_benchmark` is missing: the executor never applies it (`programs.flags`).
_FIELDS: Final = tuple(
    (field, getattr(_C, getter))
    for field, getter in (
        ("deterministic", "_get_deterministic_algorithms"),
        ("deterministic_warn_only", "_get_deterministic_algorithms_warn_only"),
        ("cudnn_enabled", "_get_cudnn_enabled"),
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
#: All that is read.
_CALLS: Final[tuple[Call, ...]] = (
    *((getter, ()) for _, getter in _FIELDS),
    (torch.get_default_dtype, ()),
    *((_C._get_fp32_precision_getter, pair) for pair in FLOAT32),
)
#: torch's own order of attention's kernels
_ORDER: Final = _C._get_sdp_priority_order()


class Preferred:
    """CUDA's libraries, of which a build of torch without CUDA knows nothing."""

    #: for products of matrices, and for linear algebra
    libraries: tuple[str, str] = ("default", "default")


class _Last:
    """What was read last, with the switches that it says: together, for threads read at once."""

    seen: tuple[tuple[Any, ...], tuple[str, str], Flags] = ((), ("", ""), Flags())


#: what stands in for the switches as they are now, where a run is cut for others
_instead: Flags | None = None


def current() -> Flags:
    """The switches as they are now."""
    if _instead is not None:
        return _instead
    libraries = Preferred.libraries
    seen, preferred, flags = _Last.seen
    read = read_all(_CALLS, seen)
    if read is not seen or preferred != libraries:
        flags = _flags(read, libraries)
        _Last.seen = read, libraries, flags
    return flags


def read_in_python(calls: tuple[Call, ...], seen: tuple[Any, ...]) -> tuple[Any, ...]:
    """What each of the calls returns now; `seen` itself where that is the same."""
    read = tuple([function(*given) for function, given in calls])
    return seen if read == seen else read


#: the accelerator's form, where there is one
read_all: Callable[[tuple[Call, ...], tuple[Any, ...]], tuple[Any, ...]] = getattr(
    loading.load(), "read_all", read_in_python
)


def _flags(read: tuple[Any, ...], libraries: tuple[str, str]) -> Flags:
    told: dict[str, Any] = dict(zip(_NAMES, read, strict=False))
    for half in ("fp16", "bf16"):
        allowed = told[f"{half}_reduced_precision"]
        reduced, split_k = allowed if isinstance(allowed, tuple) else (allowed, True)
        told |= {f"{half}_reduced_precision": reduced, f"{half}_split_k": split_k}
    carveout = told.pop("carveout", None)
    blas, linalg = libraries
    dtype, *precisions = read[len(_NAMES) :]
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
    return {
        "attention": bits,
        "attention_order": attention_order(),
        "attention_reduces": bool(_C._get_math_sdp_allow_fp16_bf16_reduction()),
    }


def attention_order() -> tuple[int, ...]:
    """Return the order of attention's kernels that was set; () for torch's own.

    Torch's own depends on the GPU, which only the executor's torch knows.
    """
    order = _C._get_sdp_priority_order()
    return () if order == _ORDER else tuple(map(int, order))


@contextmanager
def recorded_under(switches: Flags) -> Iterator[None]:
    """What is cut inside was recorded under these switches."""
    global _instead
    before, _instead = _instead, switches
    try:
        yield
    finally:
        _instead = before
