"""A run in the midst of its ops, as another thread sees it: stopped between two, and let go of.

The run notes each op before it begins, through a view of its own (`RunContext.mark`). Whoever
releases the view makes the next note fail, so the op is not begun; stopping costs a run nothing
that is not stopped. The accelerator notes them without Python, and looks behind each note whether
it is to stop: an op that counts as begun may then be the first that is not. Whether to go on later,
to leave it there, or to drop everything is for others to say.

Invariant: of a run that was stopped nothing is freed that the op in progress reads or writes.
"""

import sys
from collections.abc import Iterator, Sequence
from threading import get_ident
from typing import TYPE_CHECKING, Any, Final

import torch

from jgpu.accelerator import loading
from jgpu.broker.executor.programs.buffers import Buffer
from jgpu.broker.executor.programs.checking.arguments import Const, Many
from jgpu.wire.program import NO_SLOT

if TYPE_CHECKING:
    from types import CodeType, FrameType

    from jgpu.broker.executor.programs.plan import ProgramPlan
    from jgpu.broker.executor.programs.running.interpret import Walker

__all__ = ["Running", "has_written_resident"]

#: storages of fewer bytes are not worth freeing by hand, and some of them are read by address
_FEW_BYTES: Final = 4096
_ACCELERATOR: Final = loading.load()


class Running:
    """One run; made by the thread that does its ops, before the first."""

    __slots__ = (
        "_buffers", "_stop", "_stopped", "_thread", "code", "mark", "plan", "walker", "word",
    )  # fmt: skip

    def __init__(
        self, plan: "ProgramPlan", buffers: Sequence[Buffer], mark: memoryview, word: memoryview
    ) -> None:
        """`mark` and `word` are two views of one word; `mark` is the run's own."""
        self.plan = plan
        self.mark = mark
        #: the compiled function that does the ops, or the walker, whichever is at it
        self.code: CodeType | None = None
        self.walker: Walker | None = None
        self._buffers = buffers
        self.word = word
        self._thread = get_ident()
        self._stopped = False
        #: what the accelerator's run is stopped by, where it is at the ops
        self._stop: Any = None

    def stop(self) -> int:
        """No op begins from here on; returns how many have begun, or one more. Any thread."""
        self._stopped = True
        self.mark.release()
        if self._stop is not None:
            _ACCELERATOR.stop(self._stop)
        return self.word[0] + 1

    def stopped_by(self) -> Any:
        """What the accelerator is to stop its run by; the run's own thread asks, before it."""
        self._stop = made = _ACCELERATOR.new_stop()
        if self._stopped:
            _ACCELERATOR.stop(made)
        return made

    def refused(self, step: int) -> bool:
        """Whether an exception at this step means that the run was stopped before it."""
        return self._stopped and self.word[0] != step

    def has_written_resident(self, begun: int) -> bool:
        """Whether any of the first `begun` ops may have written a resident buffer."""
        return has_written_resident(self.plan, self._buffers, begun)

    # -- of a session that is gone -------------------------------------------------------------

    def kept(self, begun: int) -> frozenset[int]:
        """Addresses of the storages that the op begun last may read or write."""
        step = self.plan.steps[begun - 1]
        slots = {ref.slot for ref in step.refs} | {slot for slot in step.outs if slot != NO_SLOT}
        variables = self._variables()
        tensors = [
            *(variables.get(name) for slot in slots for name in self._names(slot)),
            *(self._buffers[slot].base for slot in slots if slot < self.plan.inputs),
            *self._constants(),
        ]
        return frozenset(_address(each) for each in tensors if isinstance(each, torch.Tensor))

    def free_others(self, kept: frozenset[int]) -> None:
        """Free the storages of all other slots, whoever refers to them. The run must be stopped."""
        variables = self._variables()
        for slot in range(self.plan.inputs + self.plan.fresh):
            for name in self._names(slot):
                tensor = variables.get(name)
                if isinstance(tensor, torch.Tensor) and _address(tensor) not in kept:
                    storage = tensor.untyped_storage()
                    if storage.nbytes() >= _FEW_BYTES and storage.resizable():
                        storage.resize_(0)

    def _names(self, slot: int) -> tuple[str, ...]:
        return self.plan.variables.get(slot, (f"s{slot}",))

    def _variables(self) -> dict[str, Any]:
        if self.walker is not None:
            return dict(self.walker.env)
        if self._stop is not None:
            found: dict[str, Any] = _ACCELERATOR.variables(self._stop)
            return found
        frame: FrameType | None = sys._current_frames().get(self._thread)
        while frame is not None and frame.f_code is not self.code:
            frame = frame.f_back
        return {} if frame is None else dict(frame.f_locals)

    def _constants(self) -> Iterator[Any]:
        """What belongs to the program, not to the session."""
        for step in self.plan.steps:
            for node in step.bound:
                for leaf in node.nodes if isinstance(node, Many) else (node,):
                    if isinstance(leaf, Const):
                        yield leaf.value


def has_written_resident(plan: "ProgramPlan", buffers: Sequence[Buffer], begun: int) -> bool:
    """Whether any of the first `begun` ops of a run may have written a resident buffer."""
    return any(
        first < begun and buffer.resident
        for first, buffer in zip(plan.first_write, buffers, strict=False)
    )


def _address(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()
