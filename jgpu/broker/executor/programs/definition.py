"""Definitions: programs that were checked once, ready to run for any session.

`define` decodes, checks every op, argument, geometry and contract, and answers with a
`Definition` or a `ProgramError`; `Definition.run` then trusts what was checked and checks at each
run only what changes from run to run (bytes of the inputs, offsets, kinds of the parameters).

The rule that must not be broken: nothing in a `Definition` belongs to a session.
"""

from collections.abc import Sequence
from typing import Literal, TypeAlias

from jgpu.broker.executor.programs.buffers import Buffer
from jgpu.broker.executor.programs.outcome import Outcome, RunContext, Suspended
from jgpu.wire.messages import Number

__all__ = ["Definition", "DeviceKind", "define"]

DeviceKind: TypeAlias = Literal["cpu", "cuda", "null"]


class Definition:
    """A checked program for one kind of device."""

    #: the executor's hash of the bytes
    hash: bytes
    #: numbers of input slots, of fresh slots and of ops
    inputs: int
    fresh: int
    ops: int
    #: EWMA of the seconds a run took, None before the first `observe`
    predicted_s: float | None
    #: smallest bytes of each input slot's buffer
    least_bytes: tuple[int, ...]
    #: input slots whose buffers may be resized by a run: call `Buffer.remeasure` after it
    resized: tuple[int, ...]

    def check(self, buffers: Sequence[Buffer], params: Sequence[Number]) -> None:
        """Raise `ProgramError` unless these inputs fit: counts, bytes, offsets, kinds."""
        raise NotImplementedError

    def run(
        self,
        buffers: Sequence[Buffer],
        params: Sequence[Number],
        live: bytes,
        dead: bytes,
        context: RunContext,
    ) -> Outcome:
        """Run it. Unpoisoned inputs must be on the device; dead ones are released on the way.

        Raises `ProgramError` before anything ran (see `check`); failures of ops are in the
        outcome, and so is running out of memory (`Outcome.suspended`).
        """
        raise NotImplementedError

    def resume(self, suspended: Suspended, context: RunContext) -> Outcome:
        """Go on at the op that did not get its memory; may suspend again."""
        raise NotImplementedError

    def abandon(self, suspended: Suspended, context: RunContext) -> Outcome:
        """Give up waiting for memory: the op fails with the allocator's text, the rest goes on."""
        raise NotImplementedError

    def output_bytes(self, live: bytes) -> int:
        """Bytes of the fresh slots that outlive the run; `live` as in the message `Run`."""
        raise NotImplementedError

    def slot_bytes(self) -> tuple[int, ...]:
        """Bytes of each fresh slot by its claimed geometry; 0 where it shares an older storage."""
        raise NotImplementedError

    def transient_bytes(self, live: bytes, dead: bytes = b"") -> int:
        """Most bytes of fresh slots that exist at once during the run (live outputs included)."""
        raise NotImplementedError

    def observe(self, seconds: float) -> None:
        """Note how long a run took."""
        raise NotImplementedError


def define(data: bytes, device: DeviceKind) -> Definition:
    """Check a program's canonical bytes for a kind of device; raises `ProgramError`."""
    raise NotImplementedError
