"""Numbers of a call that the device's kernel may refuse: each recorded call is compared with them.

Numbers are parameters of a program, so a plan is made once for all of them. A call whose numbers
leave the ranges here is recorded and waited for, so that the device's own error is raised on its
line (`doubts`). The accelerator compares, too: it leaves such calls to `dispatch`.

Does not cover numbers past the range of float32, bfloat16 and float64.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import inf, isfinite, nextafter
from typing import TYPE_CHECKING, Any, Final

import torch

from jgpu.device.geometry import InternedGeometry
from jgpu.device.recording.ops import OpInfo
from jgpu.wire.program import Param

if TYPE_CHECKING:
    from jgpu.device.recording.infer import OpPlan

__all__ = ["Ranges", "has_complex_for_real", "ranges_of"]

_POSITIVE: Final = (nextafter(0.0, 1.0), inf)
_BELOW_ONE: Final = nextafter(1.0, 0.0)
#: What numbers of random ops must be, by op and argument; both ends are allowed.
_DRAWN: Final = {
    "bernoulli": {"p": (0.0, 1.0)},
    "cauchy": {"sigma": _POSITIVE},
    "exponential": {"lambd": _POSITIVE},
    "geometric": {"p": (_POSITIVE[0], _BELOW_ONE)},
    "log_normal": {"std": _POSITIVE},
    "native_dropout": {"p": (0.0, 1.0)},
    "normal": {"std": (0.0, inf)},
}
#: Ops that convert a number to the type of their tensor, or refuse it.
_CONVERTING: Final = frozenset({
    "constant_pad_nd", "fill", "full_like", "index_fill", "masked_fill", "new_full", "scatter",
})  # fmt: skip
#: The same, whose numbers are compared only where their tensor has whole numbers.
_REAL: Final = frozenset({"addcmul", "addmm", "hardtanh", "lerp", "linspace", "threshold"})


@dataclass(frozen=True, slots=True)
class Ranges:
    """Ranges of a plan's numbers, by their place among a call's numbers.

    `intervals` has place, least, most, and whether infinities and NaN are allowed, too. The second
    number of `ordered` must not be less than the first.
    """

    intervals: tuple[tuple[int, float, float, bool], ...]
    ordered: tuple[int, int] | None = None

    def are_left(self, numbers: Sequence[Any]) -> bool:
        """Whether a kernel may refuse these numbers."""
        for place, least, most, infinite in self.intervals:
            number = numbers[place]
            if not least <= number <= most and not (infinite and not isfinite(number)):
                return True
        return self.ordered is not None and not (
            numbers[self.ordered[0]] <= numbers[self.ordered[1]]
        )


def ranges_of(plan: "OpPlan", params: Sequence[Any]) -> Ranges | None:
    """Return what to compare the numbers of each call with; None where nothing is compared."""
    info, geometries = plan.info, plan.geometries
    if not geometries or not params or complex in map(type, params):
        return None
    base = _base(info)
    places = dict(_places(plan))
    if not places:
        return None
    if base == "uniform":
        return _uniform(places, geometries[0].dtype)
    if base in _DRAWN:
        allowed = _DRAWN[base]
        found = [(at, *allowed[name], False) for name, at in places.items() if name in allowed]
        return Ranges(tuple(found)) if found else None
    dtype = geometries[0].dtype
    is_whole = not (dtype.is_floating_point or dtype.is_complex or dtype is torch.bool)
    if is_whole and (base in _CONVERTING or base in _REAL):
        whole = torch.iinfo(dtype)
        return Ranges(tuple((at, whole.min, whole.max, False) for at in places.values()))
    if dtype is torch.float16 and base in _CONVERTING:
        most = torch.finfo(dtype).max
        return Ranges(tuple((at, -most, most, True) for at in places.values()))
    return None


def has_complex_for_real(
    info: OpInfo, geometries: tuple[InternedGeometry, ...], params: Sequence[Any]
) -> bool:
    """Whether the call gives a complex number to an op on real tensors, which may refuse it."""
    if complex not in map(type, params) or not geometries or geometries[0].dtype.is_complex:
        return False
    return info.in_place or _base(info) in _CONVERTING | _REAL


def _base(info: OpInfo) -> str:
    name: str = info.func._schema.name[6:]
    return name.removesuffix("_")


def _places(plan: "OpPlan") -> Iterator[tuple[str, int]]:
    """The places of numbers among a call's numbers, by the names of their arguments."""
    for argument, value in zip(plan.info.arguments, plan.args, strict=False):
        if isinstance(value, Param):
            yield argument.name, value.index
    for name, value in plan.kwargs.items():
        if isinstance(value, Param):
            yield name, value.index


def _uniform(places: dict[str, int], dtype: torch.dtype) -> Ranges:
    """The bounds of `uniform_`: ordered, and their distance is a number of this type."""
    most = torch.finfo(dtype).max / 2 if dtype.is_floating_point else inf
    low, high = places.get("from"), places.get("to")
    found = []
    if low is not None:
        found.append((low, -most, most if high is not None else 1.0, False))
    if high is not None:
        found.append((high, -most if low is not None else 0.0, most, False))
    ordered = None if low is None or high is None else (low, high)
    return Ranges(tuple(found), ordered)
