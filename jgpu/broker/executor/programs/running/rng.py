"""Random ops that take no generator, drawn from the session's all the same.

Such an op (`native_dropout`, `rand_like`) draws from torch's default generator of its device. Here
the session's state is put into it for the length of one op, under a lock of the whole process.

Nothing else in an executor draws from a default generator, nor looks at a session's while an op
draws from it. `exchange_states` is the plain form, by which the accelerator's is measured.
"""

from collections.abc import Callable
from threading import Lock
from typing import Any, Final

import torch

from jgpu.accelerator import loading

__all__ = ["drawing", "exchange_states"]

_LOCK: Final = Lock()


def exchange_states(first: torch.Generator, second: torch.Generator) -> None:
    """Two generators of the host change states."""
    own = first.get_state()
    first.set_state(second.get_state())
    second.set_state(own)


_exchange: Final[Callable[[torch.Generator, torch.Generator], None]] = getattr(
    loading.load(), "exchange_states", exchange_states
)


def drawing(generator: torch.Generator, call: Callable[..., Any], *args: Any, **kw: Any) -> Any:
    """`call(*args, **kw)` with the default generator of its device standing for `generator`."""
    lend: Callable[..., Any] | None = getattr(generator, "lend", None)
    if lend is not None:  # of a device whose default generator is its own affair
        return lend(call, *args, **kw)
    if generator.device.type == "cuda":
        return _drawing_cuda(generator, call, *args, **kw)
    default = torch.default_generator
    with _LOCK:
        _exchange(default, generator)
        try:
            return call(*args, **kw)
        finally:
            _exchange(default, generator)


def _drawing_cuda(
    generator: torch.Generator, call: Callable[..., Any], *args: Any, **kw: Any
) -> Any:
    """The same by swapping a pointer: both ends then share one state."""
    default = torch.cuda.default_generators[generator.device.index or 0]
    with _LOCK:
        own = default.graphsafe_get_state()
        default.graphsafe_set_state(generator)
        try:
            return call(*args, **kw)
        finally:
            default.graphsafe_set_state(own)
