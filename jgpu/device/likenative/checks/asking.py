"""Call the host's kernel with small stand-ins to learn whether it refuses a call.

Large sizes become small ones. Equal sizes stay equal, different sizes stay in order, and each size
stays on the same side of every whole number of the call.

Does not cover relations between products of sizes, and values: all elements are zeros or ones.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from math import prod
from types import MappingProxyType
from typing import Any, Final

import torch

from jgpu.device.geometry import InternedGeometry
from jgpu.device.likenative import words
from jgpu.device.likenative.trying import REFUSING, call_quietly
from jgpu.device.recording.ops import OpInfo
from jgpu.device.tensor import DeviceTensor

__all__ = ["QUICK", "elements_of", "is_trusting", "refusal", "smaller", "whole_numbers"]

#: Elements up to which the host's kernel is called.
QUICK: Final = 1 << 14
#: Sizes up to this one stay as they are.
_SMALL: Final = 4
#: Internal ops, whose callers have checked their arguments, and others that trust them; and those
#: that only CUDA has for all types that they take.
_TRUSTING: Final = re.compile(
    r"aten::(_(?!adaptive|cdist_forward|foreach|pdist_forward|prelu_kernel|upsample)"
    r"|mkldnn|fused|fbgemm|quantize|segment)"
)
#: Types of arguments that hold whole numbers.
_WHOLE: Final = ("int", "List[int]", "Optional[int]", "Optional[List[int]]")


def is_trusting(info: OpInfo) -> bool:
    """Whether the op trusts its arguments, so that a call with stand-ins could end the process."""
    return _TRUSTING.match(info.name) is not None


def whole_numbers(info: OpInfo, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[int]:
    """Yield the whole numbers of a call that may be compared with sizes."""
    kinds = {argument.name: str(argument.type) for argument in info.arguments}
    for name, value in (*zip(kinds, args, strict=False), *kwargs.items()):
        if value is not None and kinds[name] in _WHOLE:
            listed = value if isinstance(value, list | tuple) else (value,)
            yield from (each for each in listed if type(each) is int)


def smaller(geometries: Iterable[InternedGeometry], numbers: Iterable[int]) -> dict[int, int]:
    """Return smaller sizes for the large ones."""
    sizes = sorted({size for each in geometries for size in each.shape if size > _SMALL})
    apart = max((abs(number) for number in numbers if number not in sizes), default=0)
    first = max(_SMALL, 2 * apart) + 1
    return {size: min(size, first + rank) for rank, size in enumerate(sizes)}


def elements_of(geometries: Iterable[InternedGeometry], small: Mapping[int, int]) -> int:
    """Count the elements of stand-ins of these sizes."""
    return sum(prod(small.get(size, size) for size in each.shape) for each in geometries)


def refusal(
    info: OpInfo,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    small: Mapping[int, int],
    types: Mapping[torch.dtype, torch.dtype] = MappingProxyType({}),
) -> Exception | None:
    """Return what the host's kernel raises for tensors whose sizes and types are replaced."""
    draws_from_host = info.seeded and "generator" not in info.positions
    elementwise = words.is_elementwise(info)
    kinds = [str(argument.type) for argument in info.arguments]

    def resized(value: Any, kind: str) -> Any:
        if not small or kind not in _WHOLE or value is None:
            return value
        if isinstance(value, list | tuple):
            return [small.get(each, each) for each in value]
        return small.get(value, value)

    def stand_in(tensor: DeviceTensor) -> torch.Tensor:
        geometry = tensor._g
        shape = [0 if draws_from_host else small.get(size, size) for size in geometry.shape]
        dtype = types.get(geometry.dtype, geometry.dtype)
        measured = dtype.is_floating_point or dtype.is_complex
        # elementwise kernels may divide, some without a check; zeros are in the bounds of any index
        fill = torch.ones if measured or elementwise else torch.zeros
        return fill(shape, dtype=dtype, device="cpu")

    given = tuple(map(resized, args, kinds))
    try:
        call_quietly(info, given, kwargs, stand_in)
    except (*REFUSING, ArithmeticError) as error:
        return error.with_traceback(None)  # whose frames would keep the call's tensors
    return None
