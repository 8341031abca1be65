"""Checks of `torch.distributions` in few waits: of all parameters at once, of a value on the host.

torch asks of each parameter, and of each value that is scored, whether it keeps its constraint:
natively a look at memory, here a wait. What is raised, and on which line, is torch's own: where
something may be wrong, torch's code looks once more, one after the other.
"""

import functools
import sys
from collections.abc import Callable
from typing import Any, Final

import torch
from torch.distributions import Distribution, constraints
from torch.distributions.utils import lazy_property

from jgpu.device.likenative import warned
from jgpu.device.recording import copies
from jgpu.device.tensor import DeviceTensor
from jgpu.device.tracebacks import hide, seam
from jgpu.errors import JgpuError

__all__ = ["install"]

#: Constraints that compare each element with numbers, which every device does to the same end.
_ELEMENTWISE: Final = frozenset(
    {
        "_Boolean", "_GreaterThan", "_GreaterThanEq", "_HalfOpenInterval", "_IndependentConstraint",
        "_IntegerGreaterThan", "_IntegerInterval", "_IntegerLessThan", "_Interval", "_LessThan",
        "_Real",
    }
)  # fmt: skip
#: bytes of the largest value that is looked at on the host
_MOST_BYTES: Final = 4096
_UNSET: Final = object()


def install() -> None:
    """Have the base class of all distributions check so; `activate` calls it."""
    base: Any = Distribution
    base.__init__ = seam(_made(base.__init__))
    base._validate_sample = seam(_scored(base._validate_sample))


def _made(original: Callable[..., None]) -> Callable[..., None]:
    """`Distribution.__init__`, with one wait for all parameters that are on the device."""

    @functools.wraps(original)
    def init(
        self: Any, batch_shape: Any = _UNSET, event_shape: Any = _UNSET, validate_args: Any = None
    ) -> None:
        try:
            shapes = {}
            if batch_shape is not _UNSET:
                shapes["batch_shape"] = batch_shape
            if event_shape is not _UNSET:
                shapes["event_shape"] = event_shape
            checks = self._validate_args if validate_args is None else validate_args
            if not (checks and _keep_constraints(self)):
                _call(original, "arg_constraints", self, **shapes, validate_args=validate_args)
                return
            before = self.__dict__.get("_validate_args", _UNSET)
            original(self, **shapes, validate_args=False)
            self._validate_args = before if validate_args is None else validate_args
            if self._validate_args is _UNSET:  # as the class has it
                del self._validate_args
        except BaseException as error:
            hide(error, sys._getframe())
            raise

    return init


def _keep_constraints(distribution: Any) -> bool:
    """Whether all parameters were looked at, in one wait, and each is as it has to be.

    False, and torch asks one by one, where that is no fewer waits.
    """
    if list(map(type, vars(distribution).values())).count(DeviceTensor) < 2:
        return False
    try:
        checked = _checked(distribution)
        if checked is None:
            return False
        flags = [constraint.check(value).all() for constraint, value in checked]
        of_device = list(map(type, flags)).count(DeviceTensor) == len(flags)
        return of_device and bool(torch.stack(flags).all())
    except JgpuError:  # of earlier work, and told once
        raise
    except Exception:  # torch's own code raises it, on the notebook's line
        return False


def _checked(distribution: Any) -> list[tuple[Any, Any]] | None:
    """Constraints and values of the parameters that torch looks at.

    None where there are not two of them, or some that are not on the device.
    """
    checked = []
    for name, constraint in distribution.arg_constraints.items():
        made = name in distribution.__dict__
        lazy = not made and isinstance(getattr(type(distribution), name), lazy_property)
        if not (lazy or constraints.is_dependent(constraint)):
            value = getattr(distribution, name)
            if type(value) is not DeviceTensor:
                return None
            checked.append((constraint, value))
    return checked if len(checked) > 1 else None


def _scored(original: Callable[[Any, Any], None]) -> Callable[[Any, Any], None]:
    """`Distribution._validate_sample`; a small value is looked at on the host.

    It comes in the wait that the look would have cost, so whoever reads it then waits no more.
    """

    @functools.wraps(original)
    def validate_sample(self: Any, value: Any) -> None:
        try:
            if type(value) is DeviceTensor and value._b.nbytes <= _MOST_BYTES:
                try:
                    if _is_elementwise(self.support):
                        original(self, copies.download(value.detach()))
                        return
                except JgpuError:  # of earlier work, and told once
                    raise
                except Exception:  # torch's own code raises it, of the device's tensor
                    pass
            _call(original, "support", self, value)
        except BaseException as error:
            hide(error, sys._getframe())
            raise

    return validate_sample


def _call(
    original: Callable[..., None], asked: str, distribution: Any, *args: Any, **kw: Any
) -> None:
    """Torch's own, which warns at its caller's line where a class does not say what is `asked`."""
    if getattr(type(distribution), asked) is getattr(Distribution, asked):
        warned.as_caller(original, (distribution, *args), kw)
    else:
        original(distribution, *args, **kw)


def _is_elementwise(constraint: Any) -> bool:
    """Whether it compares each element with numbers, and with nothing that is on the device."""
    if type(constraint).__name__ not in _ELEMENTWISE:
        return False
    for each in vars(constraint).values():
        if not (isinstance(each, int | float) or _is_elementwise(each)):
            return False
    return True
