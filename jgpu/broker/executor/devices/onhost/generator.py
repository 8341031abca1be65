"""The device's random number generators: a seed and an offset, as CUDA's are.

The launch of a kernel decides which numbers it draws: it takes seed and offset, and the offset
advances by as much as the kernel may need (`kernels.philox`).
"""

from collections.abc import Callable, Iterable
from struct import pack, unpack
from threading import local
from typing import Any, Final, Self
from weakref import WeakValueDictionary

import torch

from jgpu.broker.executor.devices.onhost.kernels import Philox

__all__ = ["PhiloxGenerator", "found_in", "standing"]

#: bytes of a state: seed and offset, little-endian
_STATE: Final = "<Qq"
_LARGEST: Final = 1 << 64
_default: Final = local()
#: by torch's own object, for ops are not given ours
_all: Final[WeakValueDictionary[int, "PhiloxGenerator"]] = WeakValueDictionary()


def found_in(leaves: Iterable[object]) -> "PhiloxGenerator | None":
    """The generator among an op's arguments."""
    for leaf in leaves:
        if isinstance(leaf, torch.Generator):
            return _all.get(_address(leaf))
    return None


def standing() -> "PhiloxGenerator | None":
    """Return the generator that this thread uses as the device's default one."""
    return getattr(_default, "generator", None)


def _address(generator: torch.Generator) -> int:
    found: int = generator._cdata  # type: ignore[attr-defined]
    return found


class PhiloxGenerator(torch.Generator):
    """A generator whose state is a place in a Philox sequence."""

    def __init__(self, *args: Any) -> None:
        self._place = Philox(0, 0)
        _all[_address(self)] = self

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        """Return the device that shadows report."""
        return torch.device("meta")

    def lend(self, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """`call(*args, **kwargs)` with this for the device's default generator."""
        before, _default.generator = standing(), self
        try:
            return call(*args, **kwargs)
        finally:
            _default.generator = before

    @property
    def place(self) -> Philox:
        """Seed and offset of the next launch."""
        return self._place

    def take(self, increment: int) -> Philox:
        """Return seed and offset for a launch, and advance the offset by `increment`."""
        taken, self._place = self._place, self._place.after(increment)
        return taken

    def manual_seed(self, seed: int) -> Self:
        """Begin the sequence of a seed; a negative one counts from 2^64 down, as in torch."""
        self._place = Philox(seed % _LARGEST, 0)
        return self

    def initial_seed(self) -> int:
        """The seed."""
        return self._place.seed

    def get_state(self) -> torch.Tensor:
        """16 bytes."""
        state = pack(_STATE, self._place.seed, self._place.offset)
        return torch.frombuffer(bytearray(state), dtype=torch.uint8)

    def set_state(self, state: torch.Tensor) -> Self:
        """Raises RuntimeError for anything but 16 bytes, or for an offset that none can have."""
        if state.dtype is not torch.uint8 or state.numel() != 16:
            raise RuntimeError("RNG state is wrong size")
        seed, offset = unpack(_STATE, state.numpy().tobytes())
        try:
            self._place = Philox(seed, offset)
        except ValueError as error:
            raise RuntimeError(str(error)) from None
        return self
