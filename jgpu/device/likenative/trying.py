"""Calls of the host's kernels with stand-ins for the device's tensors."""

import re
import warnings
from collections.abc import Callable
from typing import Any, Final

import torch

from jgpu.device.geometry import InternedGeometry, extent
from jgpu.device.likenative import warned
from jgpu.device.recording.ops import OpInfo
from jgpu.device.tensor import DeviceTensor

__all__ = ["REFUSING", "call", "call_quietly", "laid_out"]

#: what kernels raise of arguments that do not fit
REFUSING: Final = (RuntimeError, IndexError, ValueError, TypeError)


def call(
    info: OpInfo,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    stand_in: Callable[[DeviceTensor], torch.Tensor],
    number: Callable[[Any], Any] = lambda value: value,
    func: Any = None,
) -> Any:
    """Return what the op returns on the host; errors name types as CUDA does.

    It draws no random numbers of the notebook: NotImplemented, without a call, where an op without
    a generator argument would draw any.
    """

    def twin(value: Any, lift: int) -> Any:
        if isinstance(value, DeviceTensor):
            return stand_in(value)
        if isinstance(value, list | tuple):
            return [twin(item, 1 if lift == 2 else 0) for item in value]
        if lift and type(value) in (int, float, complex):
            return number(value)
        return None if isinstance(value, torch.device | torch.Generator) else value

    lifts = (*info.lift, *(0,) * len(args))
    host = tuple(map(twin, args, lifts))
    named = {name: twin(value, info.keyword_lift.get(name, 0)) for name, value in kwargs.items()}
    if info.seeded and "generator" in info.positions:
        named["generator"] = torch.Generator()
    elif info.seeded and any(map(_has_elements, (*host, *named.values()))):
        return NotImplemented
    try:
        with torch.no_grad():
            return warned.scoped(lambda: (func or info.func)(*host, **named))
    except REFUSING as error:
        text = re.sub(r"\btorch\.(?=[A-Z]\w*Tensor\b)", "torch.cuda.", str(error))
        error.args = (text,)
        raise


def call_quietly(
    info: OpInfo,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    stand_in: Callable[[DeviceTensor], torch.Tensor],
    number: Callable[[Any], Any] = lambda value: value,
) -> None:
    """Call the host's kernel for its errors: only stand-ins are written, and warnings dropped."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        call(info, args, kwargs, stand_in, number)


def _has_elements(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and bool(value.numel())


def laid_out(geometry: InternedGeometry) -> torch.Tensor:
    """A tensor of zeros that lies in the host's memory as this one lies."""
    count = extent(geometry.shape, geometry.stride)
    storage = torch.zeros(count, dtype=geometry.dtype, device="cpu")
    return storage.as_strided(geometry.shape, geometry.stride)
