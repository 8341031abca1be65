"""Ops that are made of others which trust a value: CUDA's kernels would end the device inside them.

A notebook records the ops that such an op is made of, where each has its guard; a program may name
the whole. It is seldom, so it is looked into as it runs: every op inside is held to its guards on
the host, which waits for the device.
"""

from typing import Any, Final

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from jgpu.broker.executor.programs.checking.guards import check_range
from jgpu.broker.executor.programs.checking.trusted import Look, guards_of
from jgpu.broker.executor.programs.geometry import geometry_of
from jgpu.broker.executor.programs.precautions.language import Attempt, precaution

__all__ = ["LOOKED_INTO"]

#: where an op is registered that is made of others
_IMPLICIT: Final = "CompositeImplicitAutograd"
_EXPLICIT: Final = "CompositeExplicitAutograd"
_has: Final = torch._C._dispatch_has_kernel_for_dispatch_key

#: Base names, without a trailing underscore.
LOOKED_INTO: Final = (
    *("_unsafe_masked_index", "_unsafe_masked_index_put_accumulate", "cross_entropy_loss"),
    *("ctc_loss", "cummaxmin_backward", "embedding_backward", "embedding_bag", "gather_backward"),
    *("index_select_backward", "masked_scatter_backward", "multilabel_margin_loss", "nll_loss"),
    *("nll_loss2d", "nll_loss_nd", "one_hot", "take_along_dim"),
    *("value_selecting_reduction_backward",),
)


class _Looking(TorchDispatchMode):
    """Holds each op to its guards before it runs."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        _look(func, args, kwargs or {})
        whole = func.name()
        if not (_has(whole, _IMPLICIT) or func._schema.name.partition("::")[2] in LOOKED_INTO):
            return func(*args, **(kwargs or {}))
        with self:
            return func._op_dk(_composed(whole), *args, **(kwargs or {}))


def _composed(name: str) -> Any:
    """Where an op (`aten::base.overload`) is registered that is made of others."""
    return getattr(torch._C.DispatchKey, _IMPLICIT if _has(name, _IMPLICIT) else _EXPLICIT)


def _look(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    arguments = func._schema.arguments
    given = {argument.name: argument.default_value for argument in arguments}
    given.update(zip(given, args, strict=False))
    given.update(kwargs)
    base = func._schema.name.partition("::")[2]
    look = Look({name: _seen(value) for name, value in given.items()})
    for guard in guards_of(base, look, "cuda"):
        values = given[guard.argument]
        check_range(func._schema.name, values if guard.place < 0 else values[guard.place], guard)


def _seen(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return geometry_of(value)
    if isinstance(value, list | tuple):
        return [_seen(each) for each in value]
    return value


@precaution(*LOOKED_INTO, waits=True, on=("cuda",))
def _looked_into(attempt: Attempt) -> Any:
    with _Looking():
        return attempt.go(below=_composed(attempt.name.removesuffix(".default")))
