"""What messages are made of."""

from typing import Annotated, Final, TypeAlias

import msgspec

from jgpu.wire import limits
from jgpu.wire.fields import Name, Natural, Text
from jgpu.wire.program import Geometry

__all__ = [
    "EPHEMERAL",
    "RESIDENT",
    "TOO_LARGE",
    "DeviceFacts",
    "Hash",
    "Kernel",
    "Message",
    "Number",
    "Runtime",
    "TensorReport",
    "Width",
]

Hash: TypeAlias = Annotated[bytes, msgspec.Meta(min_length=16, max_length=16)]
Number: TypeAlias = bool | int | float | tuple[float, float]
#: one of torch's `SDPBackend`
Kernel: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=15)]
#: a number of features
Width: TypeAlias = Annotated[int, msgspec.Meta(ge=0, lt=limits.MAX_WIDTH + 1)]

#: `Tag.kind`: what a buffer is to its notebook (DESIGN: resident memory or not).
EPHEMERAL: Final = 0
RESIDENT: Final = 1
#: in `Probed.error`
TOO_LARGE: Final = "TooLarge"


class Message(msgspec.Struct, frozen=True, array_like=True, tag=True, forbid_unknown_fields=True):
    """Base of all messages: an array whose first element is the type's name."""


class Runtime(msgspec.Struct, frozen=True, array_like=True):
    """The interpreter and torch of one end; executors are keyed by (device, trust, runtime)."""

    python: Name
    torch: Name
    #: blake2b of the schemas of all aten ops, hex; equal schemas mean equal programs.
    schema: Name


class DeviceFacts(msgspec.Struct, frozen=True, array_like=True):
    """What a kernel may know of its device.

    `kind` is "cpu", "cuda" or "null"; what follows from it is asked for by name.
    """

    kind: Name
    name: Text
    capacity: Natural
    threads: Natural = 1
    capability: tuple[int, int] = (0, 0)
    multiprocessors: Natural = 0

    @property
    def has_cuda_kernels(self) -> bool:
        """Whether ops run CUDA's kernels, which torch chooses otherwise than the CPU's."""
        return self.kind == "cuda"

    @property
    def tells_values(self) -> bool:
        """Whether values are told unasked: the host reads the device's memory itself."""
        return self.kind == "cpu"


class TensorReport(msgspec.Struct, frozen=True, array_like=True):
    """A tensor that an op really produced: output `index` of op `op` of the program."""

    op: Natural
    index: Natural
    geometry: Geometry | None
    nbytes: Natural = 0
