"""Ops on lists of tensors (`torch._foreach_…`) where not all that is given is on the device.

Natively such an op does its tensors one by one, so each pair may meet or not as in the op on single
tensors, and a list may hold tensors of both. Numbers in a tensor are read where they are.
"""

from collections.abc import Callable, Iterator
from typing import Any

import torch

from jgpu.device.recording.ops import OpInfo
from jgpu.device.tensor import DeviceTensor

__all__ = ["is_mixed", "one_by_one", "with_numbers"]

_KEY = torch._C.DispatchKey.CompositeExplicitAutograd


def is_mixed(info: OpInfo, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether it is such an op, and a tensor of the host is more than a number to it."""
    if not info.name.startswith("aten::_foreach_"):
        return False
    return any(
        tensor.dim() or listed for listed, tensor in _on_host((*args, *kwargs.values()), False)
    )


def one_by_one(info: OpInfo, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Torch's own kernel for lists whose tensors are not alike: an op for each."""
    return info.func._op_dk(_KEY, *args, **kwargs)


def with_numbers(name: str) -> Callable[..., Any]:
    """`_foreach_addcdiv` and its like, with the numbers in a tensor, which belongs on the host."""
    packet = getattr(torch.ops.aten, name)

    def call(tensors: Any, first: Any, second: Any, numbers: torch.Tensor) -> Any:
        if isinstance(numbers, DeviceTensor):
            raise RuntimeError(  # noqa: TRY004 - torch's own class and words
                f"Expected scalars to be on CPU, got {numbers.device} instead."
            )
        few = [torch.zeros((), device="cpu") for _ in tensors]
        packet.Tensor(few, few, few, numbers)  # raises what there is to raise
        return packet.ScalarList(tensors, first, second, numbers.tolist())

    return call


def _on_host(value: Any, listed: bool) -> Iterator[tuple[bool, torch.Tensor]]:
    """The tensors of the host among an op's arguments, and whether they are in a list."""
    if isinstance(value, list):
        for item in value:
            yield from _on_host(item, True)
    elif isinstance(value, tuple):
        for item in value:
            yield from _on_host(item, listed)
    elif isinstance(value, torch.Tensor) and not isinstance(value, DeviceTensor):
        yield listed, value
