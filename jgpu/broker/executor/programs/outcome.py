"""What a run is given besides buffers, and what it gives back.

Nothing here decides anything. An `Outcome` with `suspended` or `stopped` set has run only a part of
its program; its other fields say nothing until it is resumed to the end, or left.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec
import torch

from jgpu.broker.executor.programs.buffers import Buffer, Failure
from jgpu.broker.executor.programs.checking.guards import Noting
from jgpu.broker.executor.programs.geometry import ViewSpec
from jgpu.wire.messages import TensorReport

if TYPE_CHECKING:
    from jgpu.broker.executor.programs.definition import Masks
    from jgpu.broker.executor.programs.running.run import Running

__all__ = ["NeverFits", "Outcome", "RunContext", "Stopped", "Suspended"]

#: where runs note their ops that nobody looks at
_UNSEEN = memoryview(bytearray(8)).cast("q")


class NeverFits(Exception):
    """So many bytes can never be had, whoever gives way; says why."""


class RunContext(msgspec.Struct, eq=False):  # made for every run: in a tenth of a class's time
    """The session's side of one run."""

    device: torch.device
    #: generators of the session by index, 0 the default one; a KeyError is the op's failure
    generators: Mapping[int, torch.Generator]
    #: the work's number, for failures
    work: int = 0
    #: report every output's true geometry (`Run.report`)
    report: bool = False
    #: where guards note on the device what they met; None where they look themselves, and raise
    notes: Noting | None = None
    #: called before each op that makes storages with (op index, bytes); may raise
    #: torch.OutOfMemoryError, which suspends the run at that op. Where it is None, nothing is
    #: counted op by op and the run is several times faster: reserve `transient_bytes` beforehand.
    allocate: Callable[[int, int], None] | None = None
    #: called before an op whose result's size the data decide, with the bytes that it takes beyond
    #: what is claimed; raises `NeverFits`, or as `allocate` does
    claim: Callable[[int], None] | None = None
    #: where the device's allocator keeps statistics: begins to watch it; the function returned is
    #: called after the run with the bytes that the run leaves behind by count, and tells the most
    #: that was in use above the beginning, without what else stays
    watch_peak: Callable[[], Callable[[int], int]] | None = None
    #: fresh slots, counted from 0, whose values the client reads soon
    wanted: tuple[int, ...] = ()
    #: called with (slot, tensor) in the midst of a run, when no op of it will write that slot any
    #: more; only for wanted slots of a few bytes, and not in every run. Must not raise.
    tell: Callable[[int, torch.Tensor], None] | None = None
    #: `[0]` is set to each op's place just before the op
    mark: memoryview = _UNSEEN
    #: where ops run ahead: called with how many ops this call has launched, now and then and before
    #: each that waits for its stream (then with `waits`); true: halt before it, to be resumed
    pauses: Callable[..., bool] | None = None
    #: each op is launched when the one before is over
    one_by_one: bool = False
    #: what this program's masks say, where that was asked for already
    masks: "Masks | None" = None
    #: what another thread may stop the run by; its mark is `mark`
    running: "Running | None" = None


@dataclass(slots=True)
class Suspended:
    """A run that met out-of-memory: everything needed to go on at the op that failed."""

    #: index of the op to go on at
    op: int
    #: bytes that the op's outputs need by the definition's count (a lower bound)
    nbytes: int
    #: the allocator's words
    text: str
    state: Any
    #: it was memory that lacked; else the op's own error is told where it fails again
    certain: bool = True


@dataclass(slots=True)
class Stopped:
    """A run that was told to stop between two ops: everything needed to go on, or to leave it."""

    #: index of the op that was not begun
    op: int
    state: Any
    #: it halted by itself, for its next op would have waited (`RunContext.pauses`)
    paused: bool = False


class Outcome(msgspec.Struct, eq=False):
    """What came of a run.

    `outputs[k]` is, for the k-th fresh slot: a tensor over the new storage (`Buffer(id, tensor)`
    takes it), a `Failure` where the slot is poisoned, or None where the run said nobody needs it.
    """

    outputs: list[torch.Tensor | Failure | None] = []
    failures: list[Failure] = []
    learnt: tuple[TensorReport, ...] = ()
    suspended: Suspended | None = None
    stopped: Stopped | None = None
    #: of a run that did nothing but its ops: the slots of `outputs` that there are, and of each the
    #: bytes of its storage and the geometry of the tensor where these are as the program says
    exact: tuple[tuple[int, int | None, ViewSpec | None], ...] | None = None

    def made(self, first: int) -> list[Buffer]:
        """Buffers of the slots that there are, where `exact` says which; numbered from `first`."""
        assert self.exact is not None
        made = []
        for k, nbytes, spec in self.exact:
            if (output := self.outputs[k]) is not None:
                made.append(Buffer(first + k, output, nbytes, seen=spec))  # type: ignore[arg-type]
        return made
