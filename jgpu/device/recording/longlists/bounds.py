"""Refuse a call that no program can hold, on the line that makes it.

A program that the executor cannot decode would fail later, and poison what other lines made. So a
new plan is compared with the limits of `wire.limits` before anything is recorded. Calls whose
lists can be split (`splitting`) do not get here.
"""

from typing import Any, Final

from jgpu.device.geometry import InternedGeometry
from jgpu.device.likenative import words
from jgpu.device.recording.infer import OpPlan
from jgpu.wire import limits

__all__ = ["check_plan"]

#: Calls with at most so many tensors and results fit whatever their geometries are.
_FEW: Final = 1024
#: Most bytes that an argument's or result's reference takes in a program, and each dimension.
_REFERENCE_BYTES: Final = 64
_DIMENSION_BYTES: Final = 20


def check_plan(plan: OpPlan, args: tuple[Any, ...], kwargs: dict[str, Any], numbers: int) -> None:
    """Raise where no program can hold a call of this plan with so many numbers."""
    name, geometries, made = plan.info.name, plan.geometries, plan.outs or ()
    for value in (*plan.args, *plan.kwargs.values()):
        if isinstance(value, str) and len(value) > limits.MAX_NAME:
            words.raise_as_native(plan.info, args, kwargs)
        _check_argument(name, value)
    known = {each for each in (*geometries, *made) if isinstance(each, InternedGeometry)}
    for each in known:
        if max(*each.shape, *each.stride, 0, 0) > limits.MAX_SIZE:
            raise RuntimeError(
                f"{name} is called with a tensor of shape {list(each.shape)} and strides "
                f"{list(each.stride)}, and the shared GPU takes sizes and strides below 2**62. "
                "Use a smaller shape."
            )
    count = len(geometries) + len(made) + numbers
    if count <= _FEW:
        return
    if max(len(made), count) > limits.MAX_LIST:
        raise RuntimeError(
            f"{name} is called with {len(geometries)} tensors, {len(made)} results and {numbers} "
            f"numbers, and the shared GPU takes {limits.MAX_LIST} of them in one call. Split the "
            "call into several of fewer tensors."
        )
    nbytes = _REFERENCE_BYTES * (count + len(known))
    nbytes += _DIMENSION_BYTES * sum(len(each.shape) for each in known)
    if nbytes > limits.MAX_FRAME_BYTES // 2:
        raise RuntimeError(
            f"{name} is called with {count} tensors and results of {len(known)} different sizes, "
            "and their sizes do not fit in one message to the shared GPU. Split the call into "
            "several of fewer tensors."
        )


def _check_argument(name: str, value: Any) -> None:
    if isinstance(value, str):
        length, most, what = len(value), limits.MAX_NAME, "characters in a text"
    elif isinstance(value, list | tuple):
        length, most, what = len(value), limits.MAX_LIST, "items in a list"
    else:
        return
    if length > most:
        raise RuntimeError(
            f"{name} is called with {length} {what}, and the shared GPU takes {most}. Split the "
            "call into several of fewer items."
        )
