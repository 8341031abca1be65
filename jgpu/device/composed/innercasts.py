"""Casts inside ops whose kernels call ops that autocast casts.

Such an op is in no list of autocast, so the executor runs it as one op, without casts. On CUDA its
kernel calls other ops through the dispatcher, which casts them: `torch.linalg.pinv` returns half
precision, because it ends with `matmul`. While autocast is on, the kernel of such an op therefore
runs in this process, and each op that it calls is cast and recorded.

The kernels are registered at the key for Python when autocast is first enabled: below autograd,
which differentiates the op as a whole, and above the recording, which does not change.
"""

import warnings
from collections.abc import Callable
from typing import Any, Final

import torch

from jgpu.device.library import routing
from jgpu.device.tracebacks import unseen

__all__ = ["CALLING", "register"]

_keys: Any = torch._C.DispatchKey
_AUTOCAST: Final = _keys.AutocastPrivateUse1

#: ops whose kernels call ops in the lists of autocast, with floating-point tensors whose dtype the
#: casts change; the keys of these kernels
CALLING: Final = {
    "_euclidean_dist": _keys.CompositeExplicitAutograd,
    "_safe_softmax": _keys.CompositeExplicitAutograd,
    "_trilinear": _keys.CompositeExplicitAutogradNonFunctional,
    "_unsafe_masked_index_put_accumulate": _keys.CompositeExplicitAutograd,
    "affine_grid_generator": _keys.CompositeExplicitAutograd,
    "linalg_pinv.atol_rtol_tensor": _keys.CompositeExplicitAutogradNonFunctional,
    "linalg_pinv.atol_rtol_tensor_out": _keys.CompositeExplicitAutograd,
    "mvlgamma": _keys.CompositeExplicitAutograd,
    "mvlgamma.out": _keys.CPU,
    "mvlgamma_": _keys.CompositeExplicitAutograd,
}

_library: Any = None


def register() -> None:
    """Put the kernels into the dispatcher, once."""
    global _library
    if _library is not None:
        return
    _library = torch._C._dispatch_library("IMPL", "aten", "", __file__, 0)
    with warnings.catch_warnings():  # the accelerator has kernels there, which get the other calls
        warnings.simplefilter("ignore")
        for name, key in CALLING.items():
            _put(name, _calling(_overload(name), key))
        for name, kernel in _OTHER.items():
            _put(name, kernel)


def _put(name: str, kernel: Callable[..., Any]) -> None:
    """Have calls with plain device tensors reach `kernel` where autocast is on."""
    full = f"aten::{name}"
    into_python = torch._C._dispatch_get_computed_kernel_for_dispatch_key(full, "Python")

    def call(keys: Any, *args: Any, **kwargs: Any) -> Any:
        is_off = torch._C._dispatch_tls_local_exclude_set().has(_AUTOCAST)
        if not is_off and routing.are_plain(args, kwargs):
            made = kernel(*args, **kwargs)
            if made is not NotImplemented:
                return made
        return into_python.call_boxed(keys, *args, **kwargs)

    _library.impl(name, "Python", unseen(call), True)


def _overload(name: str) -> Any:
    base, _, overload = name.partition(".")
    return getattr(getattr(torch.ops.aten, base), overload or "default")


def _calling(op: Any, key: Any) -> Callable[..., Any]:
    def kernel(*args: Any, **kwargs: Any) -> Any:
        return op._op_dk(key, *args, **kwargs)

    return kernel


def _ldexp(name: str) -> Callable[..., Any]:
    """Powers of two are computed by `pow`, unless the exponents are integers."""
    kernel = _calling(_overload(name), _keys.CompositeExplicitAutograd)

    def ldexp(number: torch.Tensor, exponent: torch.Tensor, **kwargs: Any) -> Any:
        is_float = exponent.is_floating_point()
        return kernel(number, exponent, **kwargs) if is_float else NotImplemented

    return ldexp


def _matrix_exp(matrix: torch.Tensor) -> Any:
    """Matrices of one row: `exp`.

    Casts change nothing for larger ones in float32; in half precision torch's own kernel gives nan.
    """
    return matrix.exp() if matrix.shape[-2:] == (1, 1) else NotImplemented


def _trace(matrix: torch.Tensor) -> Any:
    """CUDA's kernel calls `sum`, the host's does not: they only differ in half precision."""
    is_half = matrix.dtype in (torch.float16, torch.bfloat16)
    return matrix.diagonal().sum() if is_half and matrix.dim() == 2 else NotImplemented


#: ops whose kernels call such ops for some arguments only, or on CUDA only; what they call then
_OTHER: Final = {
    "ldexp.Tensor": _ldexp("ldexp.Tensor"),
    "ldexp.out": _ldexp("ldexp.out"),
    "ldexp_": _ldexp("ldexp_"),
    "linalg_matrix_exp": _matrix_exp,
    "trace": _trace,
}
