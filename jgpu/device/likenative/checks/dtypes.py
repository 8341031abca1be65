"""Types of tensors that the device's kernel may not take, and the meta kernel does.

Most kernels are compiled for a list of types; their meta kernels infer a result for any type. The
host's kernel of the op is called with small tensors of the same types, once for each op and types.
If it refuses them, the call is recorded and waited for (`doubts`): kernels of CUDA take other
types than those of the host, so only the device's own kernel decides.

Factorizations and solvers are not called, for they read pivots without checks: LAPACK and cuSOLVER
take the same four types. Calls whose floating-point tensors are all float32, or all float64, are
trusted, unless they write an `out` of another type.

Does not cover backward ops of large tensors: with smaller ones they might read out of bounds.
"""

import re
from typing import Any, Final

import torch

from jgpu.device.geometry import InternedGeometry
from jgpu.device.likenative import words
from jgpu.device.likenative.checks import asking
from jgpu.device.recording.ops import OpInfo

__all__ = ["may_be_refused"]

#: Ops that call LAPACK or cuSOLVER, or check their pivots by themselves.
_FACTORIZING: Final = re.compile(
    r"aten::_?(linalg_(?!cross|matrix_exp|vector_norm)|lu_|ormqr|geqrf|orgqr|cholesky|triangular)\w*(\..*)?"
)
_FACTORIZED: Final = (torch.float32, torch.float64, torch.complex64, torch.complex128)
_SINGLE: Final = (frozenset({torch.float32}), frozenset({torch.float64}))
_INDICES: Final = frozenset({torch.int64, torch.int32, torch.bool})
#: Elements up to which the host's kernel is called with the true sizes.
_QUICK: Final = 1 << 12

#: by the op's full name, the types and dimensions of its tensors, and its switches
_known: dict[Any, bool] = {}


def may_be_refused(
    info: OpInfo,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    geometries: tuple[InternedGeometry, ...],
    outs: list[InternedGeometry | int | None],
) -> bool:
    """Return whether the device's kernel may refuse tensors of these types."""
    dtypes = tuple([each.dtype for each in geometries])
    floating = frozenset(each for each in dtypes if each not in _INDICES)
    is_mixed = bool(info.out_names) and len(set(dtypes)) > 1
    if not dtypes or (floating in _SINGLE and not is_mixed):
        return False
    if not all(each.numel for each in geometries):  # many kernels check no type then
        return False
    switches = [each for each in (*args, *kwargs.values()) if type(each) in (bool, str)]
    key = (info.name, dtypes, tuple(len(each.shape) for each in geometries), *switches)
    found = _known.get(key)
    if found is None:
        if _FACTORIZING.fullmatch(info.name):
            found = dtypes[0] not in _FACTORIZED
        elif asking.is_trusting(info) or not words.has_host_kernel(info):
            found = False
        elif _is_brief(geometries) and _is_brief(outs):
            found = _is_of_types(asking.refusal(info, args, kwargs, {}))
        elif "backward" in info.name:
            return False
        else:
            found = _refuses_small(info, args, kwargs, geometries)
        _known[key] = found
    return found


def _is_of_types(refusal: Exception | None) -> bool:
    return refusal is not None and str(refusal) != "ZeroDivisionError"  # caused by the zeros


def _is_brief(geometries: Any) -> bool:
    return sum(each.numel for each in geometries if isinstance(each, InternedGeometry)) <= _QUICK


def _refuses_small(
    info: OpInfo,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    geometries: tuple[InternedGeometry, ...],
) -> bool:
    """Whether the host's kernel refuses smaller tensors, unless it refuses float32 alike."""
    small = asking.smaller(geometries, ())
    refusal = asking.refusal(info, args, kwargs, small)
    if refusal is None or isinstance(refusal, NotImplementedError):
        return refusal is not None
    plain = {each.dtype: torch.float32 for each in geometries if each.dtype not in _INDICES}
    other = asking.refusal(info, args, kwargs, small, plain)
    return other is None or str(other) != str(refusal)
