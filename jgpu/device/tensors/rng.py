"""Random number generators of the session, which live on the executor.

`torch.manual_seed` seeds host and device as on CUDA. A `torch.Generator(device="cuda")` is a host
generator object (Python cannot make another kind) that stands for a generator of the session: the
dispatcher hands it over as a plain one, so it is known again by a secret initial seed.

Invariant: what a device generator says of itself (seed, state, device) speaks of the session's
generator, never of the host twin; the twin draws nothing.
"""

import functools
import gc
import secrets
import sys
from typing import Any, Final

import torch

from jgpu.device import current
from jgpu.device.errors import DeviceOutOfMemory, refused
from jgpu.device.hooks.alias import Alias
from jgpu.device.hooks.naming import translate
from jgpu.device.tensor import CUDA, DeviceTensor
from jgpu.device.tracebacks import hide, seam, unseen_methods
from jgpu.wire import limits
from jgpu.wire import messages as m

__all__ = [
    "DEFAULT_SEED", "DeviceGenerator", "Generators", "check_drawn", "get_state", "install",
    "manual_seed", "set_state",
]  # fmt: skip

#: what every generator of torch starts with
DEFAULT_SEED: Final = 67280421310721
_HostGenerator: Any = torch._C.Generator
_INDEX_BITS: Final = 24
_WORD: Final = 1 << 64
_HALF: Final = 1 << 63
#: bytes of a state of CUDA's generators: seed and offset, or the seed alone
_CUDA_BYTES: Final = (16, 8)


class Generators:
    """Numbers the generators of this process; 0 is the default one.

    Numbers of forgotten generators are given again, so that a loop which makes one per step keeps
    to one program, and to few generators on the executor.
    """

    def __init__(self) -> None:
        #: host twins' seeds are this plus the number; nobody seeds a generator so by accident
        self._marker = secrets.randbits(62 - _INDEX_BITS) << _INDEX_BITS
        self._next = 1
        #: numbers of forgotten generators, appended by finalizers alone
        self.forgotten: list[int] = []
        self.initial_seed = DEFAULT_SEED
        #: how often the default one was seeded, or given a state
        self.reseeded = 0
        #: states known without asking: by number, with the connection they belong to
        self._states: dict[int, tuple[int, bytes]] = {}

    def index_of(self, generator: Any) -> int:
        """The number of a generator argument."""
        if generator is None:
            return 0
        index: int = _HostGenerator.initial_seed(generator) - self._marker
        if not 0 <= index < self._next:
            raise RuntimeError("Expected a 'cuda' device type for generator but found 'cpu'")
        return index

    def take(self) -> tuple[int, bool]:
        """A number for a new generator, and whether another one had it before."""
        if self.forgotten:
            return self.forgotten.pop(), True
        if self._next >= limits.MAX_GENERATORS:
            gc.collect()  # what a circle of references keeps is garbage
            if self.forgotten:
                return self.forgotten.pop(), True
            have = f"CUDA out of memory. This notebook holds {self._next - 1:,} generators on the "
            raise DeviceOutOfMemory(have + "shared device, which is the most that one may have.")
        self._next += 1
        return self._next - 1, False

    def forget_states(self) -> None:
        """Something was drawn: what the states are now, only the executor knows."""
        self._states.clear()

    def note_state(self, index: int, state: bytes | None) -> None:
        """The state of a generator, or that it is unknown."""
        if state is None:
            self._states.pop(index, None)
        else:
            self._states[index] = current.session.connection.generation, state

    def known_state(self, index: int) -> bytes | None:
        """The state if nothing was drawn since it was last asked for or set."""
        generation, state = self._states.get(index, (0, None))
        return state if generation == current.session.connection.generation else None

    def host_seed(self, index: int) -> int:
        """The seed by which a generator's host twin is known at dispatch."""
        return self._marker + index


@unseen_methods
class DeviceGenerator(_HostGenerator):
    """A generator of the session, made by `torch.Generator(device="cuda")`."""

    _index: int = 0
    _seed: int
    _generators: Generators

    def __new__(cls, index: int | None = None) -> "DeviceGenerator":
        made: DeviceGenerator = super().__new__(cls, "cpu")
        generators: Generators = current.session.generators
        used = False
        if index is None:
            index, used = generators.take()
        made._generators = generators
        made._index = index
        made._seed = DEFAULT_SEED
        _HostGenerator.manual_seed(made, generators.host_seed(index))
        if used:
            manual_seed(DEFAULT_SEED, index)
        return made

    def __init__(self, index: int | None = None) -> None:
        """Everything is done in `__new__`, as in torch's own class."""

    def __del__(self) -> None:
        if self._index:
            self._generators.forgotten.append(self._index)

    @property
    def device(self) -> torch.device:
        """cuda:0"""
        return CUDA

    def manual_seed(self, seed: int) -> "DeviceGenerator":
        """Seed the generator; returns it."""
        manual_seed(seed, self._index)
        self._seed = seed % _WORD
        return self

    def seed(self) -> int:
        """Seed the generator with a number from the host's entropy; returns the number."""
        seed = secrets.randbits(63)
        self.manual_seed(seed)
        return seed

    def initial_seed(self) -> int:
        """What it was last seeded with."""
        return self._generators.initial_seed if self._index == 0 else self._seed

    def get_state(self) -> torch.Tensor:
        """The state as a host tensor of bytes; waits."""
        return get_state(self._index)

    def set_state(self, new_state: torch.Tensor) -> "DeviceGenerator":
        """Set a state that `get_state` gave."""
        seed = set_state(new_state, self._index)
        self._seed = seed
        return self

    def clone_state(self) -> "DeviceGenerator":
        """A new generator in the same state."""
        return DeviceGenerator().set_state(self.get_state())

    def graphsafe_get_state(self) -> "DeviceGenerator":
        """The generator itself, which shares its state with itself."""
        return self

    def graphsafe_set_state(self, state: torch.Generator) -> "DeviceGenerator":
        """Take over another generator's state."""
        return self.set_state(state.get_state())

    def get_offset(self) -> int:
        """How far the generator has come, where it is a counter-based one as on CUDA; waits."""
        state = bytes(self.get_state().tolist())
        if len(state) != 16:
            raise refused("offsets of this device's generator", "use get_state()")
        return int.from_bytes(state[8:], "little")

    def set_offset(self, offset: int) -> "DeviceGenerator":
        """Set what `get_offset` tells."""
        self.get_offset()
        state = self.get_state()
        state[8:] = torch.tensor(
            list(offset.to_bytes(8, "little")), dtype=torch.uint8, device="cpu"
        )
        return self.set_state(state)

    def __reduce__(self) -> Any:
        return _rebuild, (self._seed, self.get_state())

    def __deepcopy__(self, memo: dict[int, Any]) -> "DeviceGenerator":
        return self.clone_state()

    def __repr__(self) -> str:
        return f"<torch.Generator on cuda:0 at {id(self):#x}>"


def _rebuild(seed: int, state: torch.Tensor) -> DeviceGenerator:
    return DeviceGenerator().manual_seed(seed).set_state(state)


class _Generator(metaclass=Alias, of=(_HostGenerator,)):
    """`torch.Generator`: the device's for "cuda", torch's own for everything else."""

    @staticmethod
    def make(device: Any = "cpu") -> Any:
        """What calling the class returns."""
        where = translate(device if isinstance(device, int) else torch.device(device))
        return DeviceGenerator() if where.type == "cuda" else _HostGenerator(where)


#: methods that draw, besides the factories
_DRAWING: Final = (
    "bernoulli", "bernoulli_", "cauchy_", "exponential_", "geometric_", "log_normal_",
    "multinomial", "normal_", "random_", "uniform_",
)  # fmt: skip


def check_drawn(result: Any, generator: Any) -> None:
    """Refuse, as torch does, what a device's generator drew on the host."""
    if isinstance(generator, DeviceGenerator) and type(result) is not DeviceTensor:
        raise RuntimeError("Expected a 'cpu' device type for generator but found 'cuda'")


def _checking(function: Any) -> Any:
    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            result = function(*args, **kwargs)
            if "generator" in kwargs:
                check_drawn(result, kwargs["generator"])
        except BaseException as error:
            hide(error, sys._getframe())
            raise
        return result

    return seam(call)


def install() -> None:
    """Make `torch.Generator` know the device, and the host's draws refuse the device's."""
    for name in _DRAWING:
        setattr(torch.Tensor, name, _checking(getattr(torch.Tensor, name)))
    for name in ("bernoulli", "multinomial", "poisson"):
        setattr(torch, name, _checking(getattr(torch, name)))
    torch.Generator = _Generator  # type: ignore[assignment,misc]


def manual_seed(seed: int, index: int = 0) -> None:
    """Seed a generator of the session, in the order of the notebook's work."""
    if not -_HALF <= seed < _WORD:
        raise ValueError("Overflow when unpacking long long")
    session = current.session
    value = seed % _WORD
    if index == 0:
        session.generators.initial_seed = value
        session.generators.reseeded += 1
    session.generators.note_state(index, None)
    session.seed(index, value - _WORD if value >= _HALF else value)


def get_state(index: int = 0) -> torch.Tensor:
    """The state as a host tensor of bytes; waits, unless nothing was drawn since the last time."""
    session = current.session
    session.cut()
    state = session.generators.known_state(index)
    if state is None:
        state = session.state_of_generator(index)
        session.generators.note_state(index, state)
    with torch._C._DisableFuncTorch():
        return torch.frombuffer(bytearray(state), dtype=torch.uint8)


def _checked(state: torch.Tensor) -> bytes:
    """The bytes of a state; raises, as torch does, where no generator has so many."""
    if not current.session.device_facts().has_cuda_kernels:
        _HostGenerator().set_state(state)
    elif state.numel() not in _CUDA_BYTES:
        raise RuntimeError("RNG state is wrong size")
    return bytes(state.tolist())


def set_state(state: torch.Tensor, index: int = 0) -> int:
    """Set a state that `get_state` gave; returns the seed that is part of it."""
    if not isinstance(state, torch.Tensor) or state.dtype != torch.uint8:
        raise TypeError("RNG state must be a torch.ByteTensor")
    data = _checked(state.detach().cpu())
    current.session.send_ordered(lambda work: m.SetRng(work, data, index))
    current.session.generators.note_state(index, data)
    seed = int.from_bytes(data[:8], "little")
    if index == 0:
        current.session.generators.initial_seed = seed
        current.session.generators.reseeded += 1
    return seed
