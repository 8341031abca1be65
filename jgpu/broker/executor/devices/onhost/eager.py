"""Ops on the host's own tensors, at once, by the kernels that the device computed on the host has.

So kernels are asked what they return; and a program that runs so is what a notebook's is compared
with: the same kernels, the same random numbers, without streams, lanes and programs.
"""

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from jgpu.broker.executor.devices.onhost.generator import PhiloxGenerator, found_in, standing
from jgpu.broker.executor.devices.onhost.kernels import DRAWS, KERNELS
from jgpu.broker.executor.programs.lazybits import lazy_bits

__all__ = ["Eagerly"]


class Eagerly(TorchDispatchMode):
    """Around the ops; what draws without a generator of the device draws from `generator`."""

    def __init__(self, generator: PhiloxGenerator | None = None) -> None:
        super().__init__()
        #: what is drawn from where an op names none
        self.generator = generator or PhiloxGenerator()

    def draws(self, op: Any, generator: torch.Generator | None) -> bool:
        """Whether a random op that is given this generator draws as the device does."""
        return True

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        with lazy_bits():
            return self._computed(func, args, kwargs or {})

    def _computed(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        kernel = KERNELS.get(func, func)
        if func not in DRAWS:
            return kernel(*args, **kwargs)
        given = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Generator)]
        if not self.draws(func, given[0] if given else None):
            return func(*args, **kwargs)
        generator = found_in(given) or standing() or self.generator
        place = generator.take(DRAWS[func](*args, **kwargs))
        plain = {
            name: None if isinstance(value, torch.Generator) else value
            for name, value in kwargs.items()
        }
        return kernel(place, *args, **plain)
