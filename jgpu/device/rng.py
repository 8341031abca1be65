"""Seeds and random states of the session's generators, which live on the executor.

`torch.manual_seed` seeds host and device as on CUDA. A `torch.Generator(device="cuda")` is a host
generator object (Python cannot make another kind) that stands for a generator of the session.
"""

import weakref
from typing import Any

import torch

from jgpu.device import current
from jgpu.wire import messages as m

__all__ = ["DEFAULT_SEED", "Generators", "get_state", "manual_seed", "set_state"]

#: what every generator of torch starts with
DEFAULT_SEED = 67280421310721


class Generators:
    """Numbers the generators of this process; 0 is the default one."""

    def __init__(self) -> None:
        self._index: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        self._by_seed: dict[int, int] = {}
        self._next = 1
        self.initial_seed = DEFAULT_SEED

    def index_of(self, generator: Any) -> int:
        """The number of a generator argument."""
        if generator is None:
            return 0
        found = self._by_seed.get(generator.initial_seed())
        if found is None:
            raise RuntimeError("Expected a 'cuda' device type for generator but found 'cpu'")
        return found

    def add(self) -> tuple[int, int]:
        """A new number, and the secret seed by which its host twin is known at dispatch."""
        index = self._next
        self._next += 1
        marker = (0x6A67_7075 << 24) + index
        self._by_seed[marker] = index
        return index, marker


def manual_seed(seed: int, index: int = 0) -> None:
    """Seed a generator of the session, in the order of the notebook's work."""
    session = current.session
    value = seed & 0xFFFF_FFFF_FFFF_FFFF
    if value >= 1 << 63:
        value -= 1 << 64
    if index == 0:
        session.generators.initial_seed = seed
    if not session.connected:
        session.seed_later(index, value)
        return
    session.send_ordered(lambda work: m.Seed(work, value, index))


def get_state(index: int = 0) -> torch.Tensor:
    """The state as a host tensor of bytes."""
    reply = current.session.request_ordered(lambda work, request: m.GetRng(work, request, index))
    return torch.frombuffer(bytearray(reply.state), dtype=torch.uint8)


def set_state(state: torch.Tensor, index: int = 0) -> None:
    """Set a state that `get_state` gave."""
    data = state.detach().to("cpu", torch.uint8).contiguous().numpy().tobytes()
    current.session.send_ordered(lambda work: m.SetRng(work, data, index))
