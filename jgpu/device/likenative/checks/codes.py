"""Ops whose native kernels read an error code from the device and raise.

Native PyTorch waits in these ops on every device, CUDA included: LAPACK's and cuSOLVER's routines
report in a tensor whether a factorization succeeded, and the kernel reads it. Which ops do so is
read off PyTorch's sources: each caller of `_linalg_check_errors` in
`aten/src/ATen/native/BatchLinearAlgebra.cpp`, and `linalg_eig`, which looks for infinite values.
`normal` reads whether all deviations in a tensor are positive, and `histc` the range of its values
if the call names none. One plan serves all ranges, so each `histc` waits.

Does not cover composites: they reach the device as the ops listed here, or call
`_linalg_check_errors` themselves, which is an op that waits.
"""

from typing import Any, Final

from jgpu.device import current
from jgpu.device.errors import on_its_line
from jgpu.device.recording.ops import OpInfo
from jgpu.errors import WorkFailed

__all__ = ["are_read", "confirm"]

#: ops whose kernels always read the code
_ALWAYS: Final = frozenset({
    "aten::_linalg_eigh",
    "aten::_linalg_eigvals",
    "aten::_linalg_svd",
    "aten::cholesky",
    "aten::cholesky_inverse",
    "aten::linalg_eig",
    "aten::linalg_pinv.atol_rtol_tensor",  # one kernel that calls `_linalg_svd` or `_linalg_eigh`
})  # fmt: skip
#: draws with deviations in a tensor
_DEVIATING: Final = ("aten::normal.float_Tensor", "aten::normal.Tensor_Tensor")
_HISTOGRAM: Final = "aten::histc"
#: the argument of the `*_ex` ops that requests the error
_WANTED: Final = "check_errors"


def are_read(info: OpInfo, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether the native kernel of this call reads an error code and raises."""
    if info.name in _ALWAYS or info.name.removesuffix("_out") in _DEVIATING:
        return True
    if info.name.removesuffix(".out") == _HISTOGRAM:
        return True
    at = info.positions.get(_WANTED)
    if at is None:
        return False
    return bool(args[at] if at < len(args) else kwargs.get(_WANTED, False))


def confirm(info: OpInfo) -> None:
    """Wait until the op that was recorded last is done, and raise its error as native PyTorch.

    Failures of earlier ops are raised as by other waits.
    """
    try:
        current.session.synchronize()
    except WorkFailed as error:
        if error.op == info.name:
            raise on_its_line(error) from None
        raise
