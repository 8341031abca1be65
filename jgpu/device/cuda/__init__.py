"""`torch.cuda` for the shared device: the module's functions replaced as a whole.

Nothing here touches real CUDA, so it works with CUDA wheels that see no device and with CPU wheels;
nothing connects to the broker before it must (names and properties of the device do). What one
device in one process cannot be without (streams, events) shares the session's one order of work;
what needs a device of one's own (graphs, pools, raw pointers) is refused with a sentence.
"""

from typing import Any

from jgpu.device.cuda import (
    accelerator,
    backends,
    devices,
    libraries,
    memory,
    refusals,
    seeds,
    streams,
    tensortypes,
)
from jgpu.device.tracebacks import sealed

__all__ = ["install"]


def install() -> None:
    """Replace what `torch.cuda`, `torch.accelerator` and `torch.backends` say."""
    import torch

    modules: tuple[Any, ...] = (devices, streams, memory, seeds, refusals, libraries)
    for module in modules:
        for owner, names in module.REPLACED.items():
            target = getattr(torch.cuda, owner) if owner else torch.cuda
            for name, value in names.items():
                value = sealed(value)
                shown = owner and getattr(torch.cuda, name, target) is getattr(target, name, None)
                setattr(target, name, value)
                if shown:
                    setattr(torch.cuda, name, value)
    devices.install()
    streams.install()
    accelerator.install()
    backends.install()
    tensortypes.install()
