"""What native kernels make of arguments that meta kernels refuse, done by ops that take them.

Meta kernels, here and at the executor, which checks programs by them, are stricter with few types:
in shifts and powers of truths, and where nothing is computed.

Does not cover tensors that are too large to try the host's kernel with them.
"""

from typing import Any, Final

import torch

from jgpu.device.likenative import words
from jgpu.device.likenative.trying import REFUSING
from jgpu.device.recording.ops import OpInfo
from jgpu.device.tensor import device, device_tensors

__all__ = ["otherwise"]

_aten: Any = torch.ops.aten
_POWER: Final = "aten::pow_.Scalar"
#: by the name of the old op: the newer one, whose meta kernel wants both sides of one type
_SHIFTS: Final = {
    "aten::__lshift__": _aten.bitwise_left_shift,
    "aten::__rshift__": _aten.bitwise_right_shift,
    "aten::__ilshift__": _aten.bitwise_left_shift_,
    "aten::__irshift__": _aten.bitwise_right_shift_,
}


def otherwise(info: OpInfo, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What an op returns that a meta kernel has refused; NotImplemented where that was right."""
    shift = _SHIFTS.get(info.name.partition(".")[0])
    nothing = any(not each.numel() for each in device_tensors((args, *kwargs.values())))
    if not (shift or nothing or info.name == _POWER) or info.out_names:
        return NotImplemented
    try:
        made = words.on_host(info, args, kwargs)
    except REFUSING:
        return NotImplemented
    if not isinstance(made, torch.Tensor):
        return NotImplemented
    if not made.numel():
        if info.in_place:
            return args[0]
        return torch.empty_strided(made.shape, made.stride(), dtype=made.dtype, device=device())
    if shift:
        whole = [each.to(made.dtype) if isinstance(each, torch.Tensor) else each for each in args]
        return shift(*(args[:1] if info.in_place else whole[:1]), whole[1])
    if info.name == _POWER:
        return args[0].copy_(_aten.pow.Tensor_Scalar(*args))
    return NotImplemented
