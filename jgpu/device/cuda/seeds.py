"""`torch.cuda`'s seeds and random states, of the session's default generator."""

import secrets
from collections.abc import Iterable
from typing import Any

import torch

from jgpu.device import current
from jgpu.device.cuda.devices import check_index
from jgpu.device.tensors import rng

__all__ = ["REPLACED"]


def manual_seed(seed: int) -> None:
    """Seed the device's generator."""
    rng.manual_seed(int(seed))


def manual_seed_all(seed: int) -> None:
    """Seed the generators of all devices, of which there is one."""
    rng.manual_seed(int(seed))


def seed() -> None:
    """Seed the device's generator with a number from the host's entropy."""
    rng.manual_seed(secrets.randbits(63))


def seed_all() -> None:
    """As `seed`."""
    seed()


def initial_seed() -> int:
    """What the device's generator was last seeded with."""
    found: int = current.session.generators.initial_seed
    return found


def get_rng_state(device: Any = "cuda") -> torch.Tensor:
    """The generator's state as a host tensor of bytes; waits."""
    check_index(device)
    return rng.get_state()


def get_rng_state_all() -> list[torch.Tensor]:
    """The states of all devices, of which there is one."""
    return [rng.get_state()]


def set_rng_state(new_state: torch.Tensor, device: Any = "cuda") -> None:
    """Set a state that `get_rng_state` gave."""
    check_index(device)
    rng.set_state(new_state)


def set_rng_state_all(new_states: Iterable[torch.Tensor]) -> None:
    """Set the states of all devices."""
    for i, state in enumerate(new_states):
        set_rng_state(state, i)


class _DefaultGenerators:
    """`torch.cuda.default_generators`: a tuple of one, made when it is first looked at."""

    def __init__(self) -> None:
        self._made: tuple[rng.DeviceGenerator, ...] = ()

    def _all(self) -> tuple[rng.DeviceGenerator, ...]:
        if not self._made:
            self._made = (rng.DeviceGenerator(0),)
        return self._made

    def __getitem__(self, index: Any) -> Any:
        return self._all()[index]

    def __len__(self) -> int:
        return 1

    def __iter__(self) -> Any:
        return iter(self._all())


def _get_generator(device: Any) -> Any:
    check_index(device)
    return torch.cuda.default_generators[0]


def _set_rng_state_offset(offset: int, device: Any = "cuda") -> None:
    _get_generator(device).set_offset(offset)


def _get_rng_state_offset(device: Any = "cuda") -> int:
    found: int = _get_generator(device).get_offset()
    return found


REPLACED: dict[str, dict[str, Any]] = {
    "random": {
        function.__name__: function
        for function in (
            manual_seed, manual_seed_all, seed, seed_all, initial_seed, get_rng_state,
            get_rng_state_all, set_rng_state, set_rng_state_all,
        )
    },
    "": {
        "default_generators": _DefaultGenerators(),
        "_get_generator": _get_generator,
        "_set_rng_state_offset": _set_rng_state_offset,
        "_get_rng_state_offset": _get_rng_state_offset,
    },
}  # fmt: skip
