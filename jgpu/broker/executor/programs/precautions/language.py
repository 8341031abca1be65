"""What precautions are written in: a call that is about to be made, and a register of rules.

A rule gets an `Attempt`. It may look at the arguments, change them, raise what the op is to fail
with, and makes the call by `go`, or does not.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, TypeAlias

import torch

from jgpu.broker.executor.programs.checking.ops import OpSchema
from jgpu.broker.executor.programs.checking.trusted import Look

__all__ = [
    "PRECAUTIONS",
    "Attempt",
    "Precaution",
    "RegisteredRule",
    "Rule",
    "always",
    "is_integral",
    "precaution",
]

#: Called instead of the op.
Rule: TypeAlias = Callable[["Attempt"], Any]
#: Whether a call with arguments of these geometries needs it.
Condition: TypeAlias = Callable[[OpSchema, Look], bool]


class Attempt:
    """One call, by the schema's names; the kernel sees what the rule leaves in it."""

    __slots__ = ("_given", "_info")

    def __init__(self, info: OpSchema, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._info = info
        self._given = {a.name: a.default for a in info.arguments}
        self._given.update(zip(self._given, args, strict=False))
        self._given.update(kwargs)

    @property
    def name(self) -> str:
        """The op's name."""
        return self._info.name

    @property
    def base(self) -> str:
        """The op's base name without the underscore of its in-place variant."""
        return self._info.base.removesuffix("_")

    @property
    def in_place(self) -> bool:
        """Whether the op writes to `self`."""
        return self._info.arguments[0].written

    @property
    def outs(self) -> list[str]:
        """Names of the tensors that are only written."""
        return [a.name for a in self._info.arguments if a.kwarg_only and a.written]

    def __getitem__(self, name: str) -> Any:
        return self._given[name]

    def __setitem__(self, name: str, value: Any) -> None:
        self._given[name] = value

    def __contains__(self, name: str) -> bool:
        return name in self._given

    def is_on(self, device: str) -> bool:
        """Whether the call is about tensors of a device of torch's."""
        given = (leaf for value in self._given.values() for leaf in _leaves(value))
        found = {
            (leaf.device if isinstance(leaf, torch.Tensor) else leaf).type
            for leaf in given
            if isinstance(leaf, torch.Tensor | torch.device)
        }
        return device in found

    def go(self, below: Any = None) -> Any:
        """Make the call; with a dispatch key, of the kernel that is registered there."""
        args, kwargs = [], {}
        for argument in self._info.arguments:
            value = self._given[argument.name]
            if not argument.kwarg_only:
                args.append(value)
            elif value is not None or argument.required:
                kwargs[argument.name] = value
        if below is not None:
            return self._info.overload._op_dk(below, *args, **kwargs)
        return self._info.call(*args, **kwargs)


def _leaves(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


@dataclass(frozen=True, slots=True)
class Precaution:
    """A rule for one op; stands for the op's own callable."""

    info: OpSchema
    rule: Rule
    #: it looks at values on the host, so on CUDA it waits for what is on the stream
    waits: bool

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Make the call, unless the rule has something against it."""
        return self.rule(Attempt(self.info, args, kwargs))


def always(info: OpSchema, look: Look) -> bool:
    """Whatever the arguments."""
    return True


class RegisteredRule(NamedTuple):
    """A rule, the calls and the kinds of device that need it, and whether it waits."""

    rule: Rule
    when: Condition
    devices: tuple[str, ...]
    waits: bool


#: By base name, without the trailing underscore of in-place variants.
PRECAUTIONS: Final[dict[str, RegisteredRule]] = {}


def precaution(
    *bases: str, waits: bool, when: Condition = always, on: tuple[str, ...] = ("cpu", "cuda")
) -> Callable[[Rule], Rule]:
    """Registers a rule for ops of these base names.

    `waits` says whether it looks at values on the host. On CUDA that drains the stream, and what
    follows in the run is interpreted, so a rule that only passes other tensors says False.
    """

    def register(rule: Rule) -> Rule:
        for base in bases:
            assert base not in PRECAUTIONS, base
            PRECAUTIONS[base] = RegisteredRule(rule, when, on, waits)
        return rule

    return register


def is_integral(dtype: torch.dtype) -> bool:
    """Whether its values are whole numbers."""
    return not (dtype.is_floating_point or dtype.is_complex)
