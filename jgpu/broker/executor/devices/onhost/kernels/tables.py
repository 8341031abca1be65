"""The two tables of host kernels, and how a kernel gets into them.

`KERNELS[op](*args, **kwargs)` computes what CUDA's kernel of that op returns, on tensors of the
host. An op that draws is in `DRAWS` too: `DRAWS[op](*args, **kwargs)` says, from sizes alone, how
far its launch moves the generator on, a multiple of 4 and perhaps 0, and its kernel takes the
`Philox` that it draws from before all else. Generators among the arguments are for whoever calls:
kernels do not look at them.

Kernels are pure functions of what they are given. Functions here get their arguments in the order
of the op's schema, with its defaults filled in.
"""

from collections.abc import Callable, Iterator
from typing import Any, Final, TypeAlias

import torch
from torch import Tensor

__all__ = ["DRAWS", "KERNELS", "arguments", "drawing", "into", "kernel", "named"]

Function: TypeAlias = Callable[..., Any]

KERNELS: Final[dict[torch._ops.OpOverload, Function]] = {}
DRAWS: Final[dict[torch._ops.OpOverload, Function]] = {}


def named(*names: str) -> Iterator[torch._ops.OpOverload]:
    """Overloads of aten by name (`add`, `add.out`), those that this torch has."""
    for name in names:
        base, _, overload = name.partition(".")
        packet = getattr(torch.ops.aten, base, None)
        if packet is not None and (overload or "default") in packet.overloads():
            yield getattr(packet, overload or "default")


def arguments(
    op: torch._ops.OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> list[Any]:
    """All arguments of a call in the order of the schema."""
    given = list(args)
    left = op._schema.arguments[len(args) :]
    return given + [kwargs.get(each.name, each.default_value) for each in left]


def _bound(op: torch._ops.OpOverload, function: Function, drawn: bool) -> Function:
    def call(*args: Any, **kwargs: Any) -> Any:
        before, rest = (args[:1], args[1:]) if drawn else ((), args)
        with torch.no_grad():
            return function(*before, *arguments(op, rest, kwargs))

    call.__wrapped__ = function  # type: ignore[attr-defined]
    return call


def kernel(*names: str) -> Callable[[Function], Function]:
    """Registers a kernel that draws nothing."""

    def register(function: Function) -> Function:
        for op in named(*names):
            assert op not in KERNELS, op
            KERNELS[op] = _bound(op, function, drawn=False)
        return function

    return register


def drawing(*names: str, increment: Function) -> Callable[[Function], Function]:
    """Registers a kernel that draws, with what its generator moves on by."""

    def register(function: Function) -> Function:
        for op in named(*names):
            assert op not in KERNELS, op
            KERNELS[op] = _bound(op, function, drawn=True)
            DRAWS[op] = _bound(op, increment, drawn=False)
        return function

    return register


def into(out: Tensor, made: Tensor) -> Tensor:
    """`out`, resized if need be, with what was made."""
    if out.shape != made.shape:
        out.resize_(made.shape)
    return out.copy_(made)
