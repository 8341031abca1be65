"""Asking the real kernels what an op returns (message `Probe`), on scratch tensors.

Answers depend on the key alone and are shared by all sessions. The rule that must not be broken:
a probe never sees a session's data and is checked as a program's op is.
"""

from collections.abc import Sequence

from jgpu.broker.executor.programs.definition import DeviceKind
from jgpu.wire.messages import Number
from jgpu.wire.program import Flags, Geometry, Op

__all__ = ["Answer", "Prober"]

#: `Probed.outputs` and `Probed.error`
Answer = tuple[tuple[Geometry | None, ...], tuple[str, str] | None]


class Prober:
    """Probes and remembers; `most_bytes` bounds the scratch memory of one probe."""

    def __init__(self, device: DeviceKind, most: int = 8192, most_bytes: int = 1 << 30) -> None:
        self.device: DeviceKind = device
        self.most = most
        self.most_bytes = most_bytes

    def probe(
        self,
        op: Op,
        inputs: Sequence[Geometry],
        params: Sequence[Number] = (),
        flags: Flags = Flags(),  # noqa: B008 - frozen
    ) -> Answer:
        """True output geometries, or the error (type name, text) that the op raises.

        Raises `ProgramError` where the op may not run at all.
        """
        raise NotImplementedError
