"""Small values on their way to the host: a ring of pinned slots.

A number that a notebook reads is copied behind the ops that make it, on their stream, and told when
the event behind the copy was reached: the rest of the lane's work goes on meanwhile.

Invariant: a slot is used again only after its bytes were told.
"""

from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

import torch

from jgpu.broker.executor.devices.calls import Calls

if TYPE_CHECKING:
    from jgpu.broker.executor.devices.gpu.port import Flight

__all__ = ["SLOT_BYTES", "Glimpse", "GlimpseRing"]

#: bytes of a slot: a line of the cache
SLOT_BYTES: Final = 64
_SLOTS: Final = 1024


class Glimpse:
    """A copy that the device has been asked for."""

    __slots__ = ("event", "flight", "place", "slot", "then")

    def __init__(
        self,
        place: int,
        slot: torch.Tensor,
        event: Any,
        then: Callable[[bytes], None],
        flight: "Flight",
    ) -> None:
        self.place = place
        self.slot = slot
        self.event = event
        self.then = then
        #: the launch that it belongs to
        self.flight = flight


class GlimpseRing:
    """The slots of one device."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls
        self._free: deque[int] = deque()
        with suppress(RuntimeError, MemoryError):  # nothing is told unasked, then
            self._slots = calls.pinned(_SLOTS * SLOT_BYTES)
            self._free.extend(range(_SLOTS))

    def copy(self, source: torch.Tensor) -> tuple[int, torch.Tensor] | None:
        """Have bytes of the device copied to a slot on the current stream; None: none is free."""
        count = source.numel()
        if count > SLOT_BYTES or not self._free:
            return None
        place = self._free.popleft()
        slot = self._slots[place * SLOT_BYTES : place * SLOT_BYTES + count]
        self._calls.copy(slot, source)
        return place, slot

    def tell(self, glimpse: Glimpse) -> None:
        """Its event was reached: give the slot back, and say what was in it."""
        data = glimpse.slot.numpy().tobytes()
        self._free.append(glimpse.place)
        glimpse.then(data)
