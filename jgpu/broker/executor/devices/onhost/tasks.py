"""One op over blocks of device memory, computed when its stream gets there.

Knows blocks and geometries as they were when the op was launched, nothing of the host's tensors.
The kernel is the CPU's, or of `kernels` where CUDA has another.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import torch
from torch.utils._pytree import tree_leaves, tree_map

from jgpu.broker.executor.devices.onhost.kernels import KERNELS, Philox
from jgpu.broker.executor.devices.onhost.shadows import Seen

__all__ = ["HostCall", "Op", "is_out", "on_host"]

Op: TypeAlias = torch._ops.OpOverload


def is_out(argument: Any) -> bool:
    """Whether an argument of a schema says only where the result goes."""
    alias = argument.alias_info
    return bool(argument.kwarg_only and alias is not None and alias.is_write)


def on_host(leaf: Any) -> Any:
    """An argument as a kernel on the host takes it."""
    if isinstance(leaf, Seen):
        return leaf.tensor()
    if isinstance(leaf, torch.device):
        return torch.device("cpu")
    return None if isinstance(leaf, torch.Generator) else leaf


@dataclass(slots=True, eq=False)
class HostCall:
    """An op with its arguments: `Seen` for each tensor of the device."""

    op: Op
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    #: where it draws from; None where it does not
    draws: Philox | None
    #: where its results go, in order; None for those that are arguments
    results: list[Seen | None] = field(default_factory=list)
    #: where what it is to put somewhere goes, by argument; as they are after it
    outs: dict[str, Any] = field(default_factory=dict)
    dtype: torch.dtype = field(default_factory=torch.get_default_dtype)

    def call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call the kernel with tensors of the host."""
        kernel = KERNELS.get(self.op, self.op)
        if self.draws is not None:
            args = (self.draws, *args)
        with torch.no_grad(), _default(self.dtype):
            return kernel(*args, **kwargs)

    def inputs(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments in host memory."""
        args, kwargs = tree_map(on_host, (self.args, self.kwargs))
        return args, kwargs

    def compute(self) -> None:
        """Compute, and put the results where they go. Raises what the kernel raises."""
        args, kwargs = self.inputs()
        for name, seen in self.outs.items():
            kwargs[name] = tree_map(lambda each: each.tensor().clone(), seen)
        made = [leaf for leaf in tree_leaves(self.call(args, kwargs)) if _is_tensor(leaf)]
        if self.outs:
            for name, seen in self.outs.items():
                _fill(tree_leaves(seen), tree_leaves(kwargs[name]))
        else:
            _fill(self.results, made)


def _is_tensor(leaf: object) -> bool:
    return isinstance(leaf, torch.Tensor)


def _fill(places: list[Seen | None], made: list[torch.Tensor]) -> None:
    for seen, tensor in zip(places, made, strict=True):
        if seen is None:
            continue
        if tuple(tensor.shape) != seen.shape or tensor.dtype is not seen.dtype:
            raise RuntimeError(
                f"A kernel made {tensor.dtype} of shape {tuple(tensor.shape)} where {seen.dtype} "
                f"of shape {seen.shape} was said."
            )
        seen.tensor().copy_(tensor)


@contextmanager
def _default(dtype: torch.dtype) -> Iterator[None]:
    """Torch's default dtype as it was at the launch."""
    before = torch.get_default_dtype()
    if before is dtype:
        yield
        return
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)
