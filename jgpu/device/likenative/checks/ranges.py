"""Numbers of a call that the device's kernel may refuse: each recorded call is compared with them.

Numbers are parameters of a program, so a plan is made once for all of them. A call whose numbers
leave the ranges here is recorded and waited for, so that the device's own error is raised on its
line (`doubts`). The accelerator compares, too: it leaves such calls to `dispatch`.

The ranges of most ops are found out once per op and types: the host's kernel is called with numbers
at which kernels begin to refuse. Those of random ops are listed here.

Does not cover numbers in lists, and operands that are refused only together with another number.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import inf, isfinite, nextafter
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import torch

from jgpu.device.likenative import words
from jgpu.device.likenative.checks import asking
from jgpu.device.recording.ops import OpInfo
from jgpu.wire.program import Param

if TYPE_CHECKING:
    from jgpu.device.recording.infer import OpPlan

__all__ = ["Ranges", "ranges_of"]

_POSITIVE: Final = (nextafter(0.0, 1.0), inf)
_BELOW_ONE: Final = nextafter(1.0, 0.0)
#: Ranges of numbers of random ops, by op and argument; both ends are allowed.
_LISTED: Final = {
    "bernoulli": {"p": (0.0, 1.0)},
    "cauchy": {"sigma": _POSITIVE},
    "exponential": {"lambd": _POSITIVE},
    "geometric": {"p": (_POSITIVE[0], _BELOW_ONE)},
    "log_normal": {"std": _POSITIVE},
    "native_dropout": {"p": (0.0, 1.0)},
    "normal": {"std": (0.0, inf)},
    "renorm": {"p": _POSITIVE, "maxnorm": (0.0, inf)},
}
_OVERFLOW: Final = re.compile(r"value cannot be converted to type (.+) without overflow")
#: Types as errors name them.
_NAMED: Final = {
    "uint8_t": torch.uint8, "int8_t": torch.int8, "int16_t": torch.int16,
    "int": torch.int32, "int64_t": torch.int64, "c10::Half": torch.float16,
    "c10::BFloat16": torch.bfloat16, "float": torch.float32, "double": torch.float64,
    "c10::complex<c10::Half>": torch.float16, "c10::complex<float>": torch.float32,
    "c10::complex<double>": torch.float64, "uint16_t": torch.uint16, "uint32_t": torch.uint32,
    "uint64_t": torch.uint64,
}  # fmt: skip
#: Numbers just past the ranges of whole types, in order.
_PAST: Final = (200, 300, 40_000, 70_000, 1 << 31, 1 << 32)
#: A number that fits few types.
_BEYOND: Final[dict[type, int | float]] = {int: 1 << 63, float: 1e39}
_Interval: TypeAlias = tuple[float, float, bool, bool]
#: Any number is taken.
_EVERY: Final[_Interval] = (-inf, inf, True, True)
#: Tensors up to which a call is tried.
_MANY: Final = 16
#: measured ranges, by op, whether the tensor has one element, types, and kinds of numbers
_found: dict[Any, dict[str, _Interval]] = {}


@dataclass(frozen=True, slots=True)
class Ranges:
    """Ranges of a plan's numbers, by their place among a call's numbers.

    `intervals` has place, least, most, whether infinities and NaN are allowed, too, and whether 0
    is. The second number of `ordered` must not be less than the first.
    """

    intervals: tuple[tuple[int, float, float, bool, bool], ...]
    ordered: tuple[int, int] | None = None

    def are_left(self, numbers: Sequence[Any]) -> bool:
        """Whether a kernel may refuse these numbers."""
        for place, least, most, infinite, zero in self.intervals:
            number = numbers[place]
            if not least <= number <= most and not (infinite and not isfinite(number)):
                return True
            if number == 0 and not zero:
                return True
        return self.ordered is not None and not (
            numbers[self.ordered[0]] <= numbers[self.ordered[1]]
        )


def ranges_of(
    plan: "OpPlan", args: tuple[Any, ...], kwargs: dict[str, Any], params: Sequence[Any]
) -> Ranges | None:
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
    if base in _LISTED:
        allowed = _LISTED[base]
        listed = [
            (at, *allowed[name], False, True) for name, at in places.items() if name in allowed
        ]
        return Ranges(tuple(listed)) if listed else None
    if len(geometries) > _MANY or asking.is_trusting(info) or not words.has_host_kernel(info):
        return None
    kinds = tuple((name, type(params[at])) for name, at in places.items())
    one = geometries[0].numel == 1  # some kernels of the host write it in another way
    dtypes = (kwargs.get("dtype"), *(each.dtype for each in geometries))
    key = (info.name, one, dtypes, kinds)
    measured = _found.get(key)
    if measured is None:
        if not all(each.numel for each in geometries):  # many kernels check no number then
            return None
        small = asking.smaller(geometries, asking.whole_numbers(info, args, kwargs))
        if asking.elements_of(geometries, small) > asking.QUICK:
            return None
        measured = _measure(info, args, kwargs, kinds, small)
        if measured is None:
            return None
        _found[key] = measured
    found = [(places[name], *interval) for name, interval in measured.items()]
    return Ranges(tuple(found)) if found else None


def _measure(
    info: OpInfo,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    kinds: tuple[tuple[str, type], ...],
    small: Mapping[int, int],
) -> dict[str, _Interval] | None:
    """Find out which numbers the host's kernel refuses; None if it refuses usual ones, too."""
    usual = {name: kind(1) if kind is int else 0.5 for name, kind in kinds}

    def ask(tried: str, number: Any) -> str | None:
        numbers = usual | {tried: number}
        given = tuple(
            numbers.get(argument.name, value)
            for argument, value in zip(info.arguments, args, strict=False)
        )
        named = {name: numbers.get(name, value) for name, value in kwargs.items()}
        error = asking.refusal(info, given, named, small)
        return None if error is None else str(error)

    found = {}
    for name, kind in kinds:
        interval = _interval(partial(ask, name), kind, len(kinds) == 1)
        if interval != _EVERY:
            found[name] = interval
    if found and ask(kinds[0][0], usual[kinds[0][0]]) is not None:
        return None
    return found


def _interval(ask: Callable[[Any], str | None], kind: type, alone: bool) -> _Interval:
    """Least and most of the numbers that are taken, whether infinities are, and whether 0 is.

    A refusal for another reason than overflow counts only where the call has one number: others may
    be compared with it.
    """
    least, most, infinite, zero = _EVERY
    beyond = ask(_BEYOND[kind])
    dtype = _type_of_overflow(ask, kind, beyond)
    if dtype is not None and dtype.is_floating_point:
        most = torch.finfo(dtype).max
        least = -most
    elif dtype is not None:
        limits = torch.iinfo(dtype)
        most, infinite = limits.max, False
        least = limits.min
        if not least and ask(kind(-1)) is None:  # kernels let negative numbers wrap around
            least = -limits.max
    elif kind is int and beyond is not None:  # numbers past int64 have another type
        most = torch.iinfo(torch.int64).max
    if alone and ask(kind(-1)) is not None:
        least, infinite = (0.0 if ask(kind(0)) is None else _POSITIVE[0]), False
    elif alone:
        zero = ask(kind(0)) is None
    return least, most, infinite, zero


def _type_of_overflow(
    ask: Callable[[Any], str | None], kind: type, beyond: str | None
) -> torch.dtype | None:
    """The narrowest type that numbers of this kind are converted to and have to fit.

    `beyond` is the kernel's error for a number that fits none.
    """
    refused = _OVERFLOW.match(beyond or "")
    if refused is None:
        return None
    widest = _NAMED.get(refused[1])
    for number in _PAST if widest is not None and not widest.is_floating_point else ():
        refused = _OVERFLOW.match(ask(kind(number)) or "")
        if refused:
            return _NAMED.get(refused[1])
    return widest


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
    measured = dtype.is_floating_point or dtype.is_complex
    most = torch.finfo(dtype).max / 2 if measured else inf
    low, high = places.get("from"), places.get("to")
    found = []
    if low is not None:
        found.append((low, -most, most if high is not None else 1.0, False, True))
    if high is not None:
        found.append((high, -most if low is not None else 0.0, most, False, True))
    ordered = None if low is None or high is None else (low, high)
    return Ranges(tuple(found), ordered)
