"""Torch's global switches that change arithmetic: read at each cut, part of a program's hash."""

from typing import Any

import torch

from jgpu.wire.program import Flags

__all__ = ["current"]

_cache: dict[tuple[Any, ...], Flags] = {}
_C = torch._C


def current() -> Flags:
    """The switches as they are now."""
    key = (
        _C._get_deterministic_algorithms(),
        _C._get_deterministic_algorithms_warn_only(),
        _C._get_float32_matmul_precision(),
        _C._get_cublas_allow_tf32(),
        _C._get_cudnn_allow_tf32(),
        _C._get_cudnn_enabled(),
        _C._get_cudnn_benchmark(),
        _C._get_cudnn_deterministic(),
        _C._get_mkldnn_enabled(),
        torch.get_default_dtype(),
        _C._get_cublas_allow_fp16_reduced_precision_reduction(),
        _C._get_cublas_allow_bf16_reduced_precision_reduction(),
    )
    found = _cache.get(key)
    if found is None:
        found = _cache[key] = Flags(
            deterministic=bool(key[0]),
            deterministic_warn_only=bool(key[1]),
            matmul_precision=str(key[2]),
            matmul_tf32=bool(key[3]),
            cudnn_tf32=bool(key[4]),
            cudnn_enabled=bool(key[5]),
            cudnn_benchmark=bool(key[6]),
            cudnn_deterministic=bool(key[7]),
            mkldnn_enabled=bool(key[8]),
            default_dtype=str(key[9])[6:],
            fp16_reduced_precision=_allowed(key[10]),
            bf16_reduced_precision=_allowed(key[11]),
        )
    return found


def _allowed(value: Any) -> bool:
    """Whether reductions may be less precise; newer torch also says whether to split them."""
    return bool(value[0] if isinstance(value, tuple) else value)
