"""A switch of torch that changes: what was recorded before runs under what it was.

A program has one set of switches. Whatever torch sets one by cuts the log first, if the switch is
another afterwards. CUDA's preferred libraries are kept here, for a build of torch without CUDA
refuses what the executor's may well have.
"""

import functools
from collections.abc import Callable
from typing import Any, Final

import torch

from jgpu.device import current, flags
from jgpu.device.likenative import warned
from jgpu.device.tracebacks import unseen

__all__ = ["install"]

_C: Any = torch._C

#: Setters of all that is read above.
_SETTERS: Final = (
    "_set_deterministic_algorithms",
    "_set_cudnn_enabled",
    "_set_cudnn_deterministic",
    "_set_cudnn_depthwise_kernel",
    "_set_sm_carveout_experimental",
    "_set_cublas_allow_fp16_reduced_precision_reduction",
    "_set_cublas_allow_bf16_reduced_precision_reduction",
    "_set_cublas_allow_fp16_accumulation",
    "_set_mkldnn_enabled",
    "_set_mkldnn_deterministic",
    "_set_nnpack_enabled",
    "_set_cpu_allow_fp16_reduced_precision_reduction",
    "_set_float32_matmul_precision",
    "_set_cublas_allow_tf32",
    "_set_cudnn_allow_tf32",
    "_set_fp32_precision_setter",
    "_set_default_dtype",
    "_set_default_tensor_type",
    "_set_blas_preferred_backend",
    "_set_linalg_preferred_backend",
)


#: The preferred libraries, in the order of `flags.Preferred.libraries`.
_LIBRARIES: Final = ("blas", "linalg")


def install() -> None:
    """Replace torch's setters, also where its modules have kept them."""
    for which in _LIBRARIES:
        _keep_preference(which)
    replaced: dict[Any, Any] = {}
    for name in _SETTERS:
        setter = getattr(_C, name, None)
        if setter is not None:
            replaced[setter] = unseen(_cutting(setter))
            setattr(_C, name, replaced[setter])
    for module in (torch.backends.cudnn, torch.backends.mkldnn):
        for held in vars(type(module)).values():
            if getattr(held, "setter", None) in replaced:
                held.setter = replaced[held.setter]


def _cutting(setter: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(setter)
    def set_switch(*args: Any, **kwargs: Any) -> Any:
        return current.session.cut_around(lambda: warned.as_caller(setter, args, kwargs))

    return set_switch


def _keep_preference(which: str) -> None:
    """Have one of CUDA's preferred libraries kept here, whatever this build of torch has."""
    name = f"{which}_preferred_backend"
    setter, getter = getattr(_C, f"_set_{name}"), getattr(_C, f"_get_{name}")
    preferred = getter()
    _note(which, preferred)

    @functools.wraps(setter)
    def set_library(library: Any) -> None:
        nonlocal preferred
        try:
            setter(library)
        except RuntimeError:  # this build of torch was compiled without it, the executor's is asked
            if _C._has_cuda:
                raise
        preferred = library
        _note(which, library)

    @functools.wraps(getter)
    def get_library() -> Any:
        return preferred

    setattr(_C, f"_set_{name}", set_library)
    setattr(_C, f"_get_{name}", get_library)


def _note(which: str, library: Any) -> None:
    """Tell programs; torch says "cublas" also where nothing is preferred."""
    word = library.name.lower()
    libraries = list(flags.Preferred.libraries)
    libraries[_LIBRARIES.index(which)] = "default" if word == "cublas" else word
    flags.Preferred.libraries = (libraries[0], libraries[1])
