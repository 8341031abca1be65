"""Runs of programs as works.

Invariant: after a run, however it ends, each buffer that the client expects exists, with a value or
with the reason why it has none.
"""

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Final

import torch

from jgpu.broker.executor.devices.base import Port
from jgpu.broker.executor.programs import (
    Buffer,
    Definition,
    Failure,
    Masks,
    NeverFits,
    Outcome,
    RunContext,
    Running,
    Stopped,
    Suspended,
    bits,
    gate,
)
from jgpu.broker.executor.programs.checking.proofs import forget, proven
from jgpu.broker.executor.programs.running.following import follow
from jgpu.broker.executor.works.base import Paused, ShortOfMemory, Work, report_failure
from jgpu.broker.executor.works.early import own_up, tell, tell_late
from jgpu.broker.executor.works.states import LaneProgress
from jgpu.broker.flightpage import Kind
from jgpu.errors import ProgramError
from jgpu.wire import messages

if TYPE_CHECKING:
    from jgpu.broker.executor.programs.running.notes import ValueNote
    from jgpu.broker.executor.session import ExecutorSession
    from jgpu.wire.messages import TensorReport

__all__ = ["RunWork"]

#: programs of which a session's client is remembered to know the learnt geometry
_TOLD: Final = 8192
_SKIPPED: Final = LaneProgress.SKIPPED
#: the error text of a run that an interrupt stopped
STOPPED: Final = "The computation was interrupted before it was over."


class RunWork(Work):
    """A program over the session's buffers."""

    kind = Kind.PROGRAM

    def __init__(self, session: "ExecutorSession", message: messages.Run) -> None:
        super().__init__(session, message.work, ends_iteration=message.ends_iteration)
        self.message = message
        #: the program, or why there is none; None while it is awaited
        self.definition: Definition | ProgramError | None = None
        live = int.from_bytes(message.live, "little").bit_count()
        ids = len(message.inputs) + len(message.free) + 2 * len(message.params)
        self.nbytes = 64 + 8 * ids + 64 * live
        #: where it was halted, for want of memory or because its next op would have waited
        self._suspended: tuple[Suspended | Stopped, RunContext] | None = None
        #: it does not fit as a whole: memory is counted op by op, and what does not fit fails alone
        self._counts = False
        #: what came of its ops already, which `scheduling.shortway` has begun
        self.begun: tuple[Outcome, RunContext] | None = None
        #: nothing else is on the device: it is tried, op by op
        self.alone = False
        #: bytes that the op takes which was counted last
        self._op_bytes = 0
        #: all its ops were done, or failed by themselves
        self.whole = False
        #: how many of its ops were done, or failed by themselves
        self._done = 0
        #: fresh slots that a wrong value spoiled, which only the device saw
        self.spoiled: set[int] = set()
        self._failures: list[tuple[Failure, list[int]]] = []
        self._learnt: tuple[TensorReport, ...] = ()
        #: its masks and its last-used inputs, once they were computed
        self._masks: Masks | None = None
        self._dead: list[int] | None = None
        #: wanted slots whose values were sent
        self.told: set[int] = set()

    @property
    def ready(self) -> bool:
        """The definition is known, or known to be bad."""
        return self.definition is not None

    def predicted_s(self) -> float:
        """Seconds that runs of this program took."""
        if isinstance(self.definition, Definition):
            return self.definition.predicted_s or 0.0
        return 0.0

    def known_s(self) -> float:
        """Seconds that runs of this program with the same masks took."""
        definition = self.definition
        if isinstance(definition, Definition) and definition.is_ready(*self.masks(definition).key):
            return definition.predicted_s or 0.0
        return 0.0

    def frees(self) -> set[int]:
        """Include the buffers that the run names."""
        return super().frees().union(self.message.free) if self.before else set(self.message.free)

    def masks(self, definition: Definition) -> Masks:
        """Decode the masks of its message for its program."""
        if self._masks is None:
            message = self.message
            self._masks = definition.masks(message.live, message.dead, message.wanted)
        return self._masks

    @property
    def dead(self) -> list[int]:
        """Numbers of the inputs that end with it."""
        if self._dead is None:
            inputs = self.message.inputs
            definition = self.definition
            if isinstance(definition, Definition) and definition.inputs == len(inputs):
                slots = self.masks(definition).dead
            else:
                slots = bits(self.message.dead, len(inputs))
            self._dead = [inputs[k] for k in slots] if slots else []
        return self._dead

    def may_write(self, buffer: int) -> bool:
        """It makes its fresh buffers and writes some of its inputs; anything until it is known."""
        definition, message = self.definition, self.message
        if not isinstance(definition, Definition):
            return True
        if message.first <= buffer < message.first + definition.fresh:
            return True
        if buffer not in message.inputs:
            return False
        return any(message.inputs[slot] == buffer for slot in definition.written)

    def note(self, port: Port) -> None:
        """Put the program and the names of its ops on the flight page."""
        definition, key, names = self.definition, self.message.program, b""
        if isinstance(definition, Definition):
            names, self.ops = definition.names, definition.ops
        if self.begun is not None:
            return  # the page has it already, and the current op
        kind = Kind.TRIAL if self.alone else self.kind
        port.flight.begin(self.session.number, self.number, kind, key, names, self.ops)

    @property
    def went_well(self) -> bool:
        """Each op of it was done."""
        return self.whole and not self._failures

    def touches(self) -> Iterable[int]:
        """Its inputs and its fresh buffers."""
        first, definition = self.message.first, self.definition
        fresh = definition.fresh if isinstance(definition, Definition) else 0
        return (*self.message.inputs, *range(first, first + fresh))

    def do(self, port: Port) -> None:
        """Run the program, or fail as a whole."""
        message, session = self.message, self.session
        if message.free:
            session.drop(message.free, port)
        if not isinstance(self.definition, Definition):
            at_fault = self.definition or ProgramError("There is no such program.")
            self._fail("ProgramError", str(at_fault), at_fault.op, at_fault.name)
            return
        buffers = session.buffers(message.inputs)
        dead = self.dead
        if self._suspended is None:
            needed = self.transient
            if self.definition.plan.resized:
                needed += self.definition.growth_bytes(buffers)
            self._counts = not session.account.fits(session, needed)
        try:
            if session.device.launches_ahead:
                self._run_at_once(self.definition, buffers, port)
            else:
                self._run(self.definition, buffers, port)
        except ProgramError as error:
            self._fail("ProgramError", str(error))
        if dead and self.progress is not _SKIPPED:
            session.drop(dead, port)

    def _run_at_once(self, definition: Definition, buffers: list[Buffer], port: Port) -> None:
        """Run it under its flags, which the pump does not wait for."""
        flags = definition.plan.flags
        if not gate.enter_at_once(flags):
            port.put_aside(partial(gate.is_open_to, flags))
            raise Paused
        try:
            self._run(definition, buffers, port)
        finally:
            gate.leave()

    def _run(self, definition: Definition, buffers: list[Buffer], port: Port) -> None:
        session, message = self.session, self.message
        if session.faults is not None:
            session.faults.notes.proven = proven(definition.plan, buffers)
            forget(definition.plan, buffers)
        may_be_stopped = port.stoppable or self._counts or self._suspended or self.last_try
        if self.begun is not None or not may_be_stopped:
            self._run_through(definition, buffers, port)
            return
        port.use(buffers)
        halted: Suspended | Stopped | None = None
        if self._suspended is None:
            if not self._counts:
                session.table.note_peak(self.transient)
            context = self._context(port)
            # On the way only where this lane alone ever had them; `do` drops them in any case.
            dead = message.dead if port.owns(buffers) else b""
            begin = partial(definition.run, buffers, message.params, message.live, dead)
        else:
            halted, context = self._suspended
            begin = partial(definition.resume, halted)
        while True:
            running = Running(definition.plan, buffers, port.flight.mark(), port.flight.op)
            context.running, context.mark = running, running.mark
            if not session.course.enter(running):
                self._stop(definition, buffers, halted, port)
                return
            outcome = self._do_ops(begin, definition, buffers, context)
            if outcome is None:
                return
            suspended, stopped = outcome.suspended, outcome.stopped
            halted = suspended or stopped
            if stopped is not None and stopped.paused:
                self._suspended = stopped, context
                raise Paused
            if stopped is not None:
                begin = partial(definition.resume, stopped)
            elif suspended is None:
                break
            elif self.last_try:
                begin = partial(definition.abandon, suspended)
            else:
                self._suspended = suspended, context
                raise ShortOfMemory(max(1, suspended.nbytes))
        self._conclude(outcome, definition, buffers, port)

    def _run_through(self, definition: Definition, buffers: list[Buffer], port: Port) -> None:
        """As `_run`, where it cannot be stopped before its last op, now or earlier."""
        session, message = self.session, self.message
        done, suspended = 0, None
        try:
            if self.begun is not None:
                (outcome, context), self.begun = self.begun, None
            else:
                session.table.note_peak(self.transient)
                context = self._context(port)
                context.mark = port.flight.op
                if not session.course.may_enter():
                    self._stop(definition, buffers, None, port)
                    return
                live, dead = message.live, message.dead
                outcome = definition.run(buffers, message.params, live, dead, context)
            suspended = outcome.suspended
            done = definition.ops if suspended is None else suspended.op
        finally:
            session.course.leave(definition, buffers, done)
        if suspended is not None:
            self._suspended = suspended, context
            raise ShortOfMemory(max(1, suspended.nbytes))
        self._conclude(outcome, definition, buffers, port)

    def _conclude(
        self, outcome: Outcome, definition: Definition, buffers: list[Buffer], port: Port
    ) -> None:
        """Each of its ops was done, or failed by itself."""
        session, message = self.session, self.message
        self._suspended, self.whole, self._done = None, True, definition.ops
        self._settle(outcome, definition, buffers, port)
        if not outcome.learnt and message.program not in session.programs.told:
            # A run of an earlier session learnt it; this client does not know it yet.
            told = session.programs.told
            if len(told) >= _TOLD:
                told.clear()  # a client may learn it twice
            told.add(message.program)
            self._learnt = definition.learnt
        else:
            self._learnt = outcome.learnt

    def _do_ops(
        self,
        begin: Callable[[RunContext], Outcome],
        definition: Definition,
        buffers: list[Buffer],
        context: RunContext,
    ) -> Outcome | None:
        """Return the outcome when the ops are over or halted; None where the session has ended."""
        done = 0
        try:
            outcome = begin(context)
            halted = outcome.suspended or outcome.stopped
            done = definition.ops if halted is None else halted.op
        finally:
            if not self.session.course.leave(definition, buffers, done):
                self._skip()
        return None if self.progress is _SKIPPED else outcome

    def _stop(
        self,
        definition: Definition,
        buffers: list[Buffer],
        halted: Suspended | Stopped | None,
        port: Port,
    ) -> None:
        """Do no more of it: the session has ended, or was interrupted."""
        if self.session.life.is_over:
            self._skip()
            return
        self.progress = LaneProgress.STOPPED
        if halted is None:
            self._fail("WorkCancelled", STOPPED)
        else:
            self._suspended, self._done = None, halted.op
            name = definition.plan.steps[halted.op].info.name
            failure = Failure(self.number, halted.op, name, "WorkCancelled", STOPPED)
            self._settle(definition.leave(halted, failure), definition, buffers, port)

    def _settle(
        self, outcome: Outcome, definition: Definition, buffers: list[Buffer], port: Port
    ) -> None:
        for k in definition.plan.resized:
            self.session.table.remeasure(buffers[k])
        self._keep(outcome, port)
        if self.message.wanted and not self._failures:  # a value must not precede its error
            tell_late(self, port)

    def _skip(self) -> None:
        """Its buffers may be gone: touch nothing."""
        self.forget()
        self.progress = _SKIPPED

    def forget(self) -> None:
        """Drop what its ops have made so far."""
        self._suspended = None

    def _context(self, port: Port) -> RunContext:
        session, message, device = self.session, self.message, self.session.device
        context = RunContext(
            device.torch_device, session.generators, work=self.number, report=message.report
        )
        if message.wanted and device.tells:
            context.wanted, context.tell = message.wanted, partial(tell, self, port)
        if device.launches_ahead:
            context.pauses, context.one_by_one = port.pauses, self.alone
        if session.faults is not None:
            context.notes = session.faults.notes
        context.masks = self._masks
        context.allocate, context.watch_peak = device.allocate, device.watch_peak
        context.claim = self._claim
        if self._counts:
            context.allocate = partial(self._count, context)
            context.claim = partial(self._claim_beside, context)
        return context

    def _claim(self, nbytes: int) -> None:
        """Claim memory for a result whose size the data decide; idle sessions make room for it."""
        self._take(nbytes, self.transient)

    def _count(self, context: RunContext, op: int, nbytes: int) -> None:
        """Before each op of a run that does not fit as a whole: what of it fits is done."""
        if (allocate := self.session.device.allocate) is not None:
            allocate(op, nbytes)
        self._op_bytes = 0
        if nbytes:
            self._claim_beside(context, nbytes)
            self._op_bytes = nbytes

    def _claim_beside(self, context: RunContext, nbytes: int) -> None:
        """Claim memory in addition to that of earlier ops and the known need of this op."""
        walker = context.running.walker if context.running is not None else None
        self._take(nbytes, self._op_bytes + (walker.added_bytes if walker is not None else 0))

    def _take(self, nbytes: int, added: int) -> None:
        """Check `nbytes` in addition to `added` bytes of the run against the limits."""
        session = self.session
        if not session.may_use(added + nbytes):
            raise NeverFits(session.out_of_memory(nbytes, max(0, added)))
        lacking = added + nbytes if self._counts else nbytes
        if lacking > session.account.free_bytes() and not self.last_try:
            raise torch.OutOfMemoryError(session.out_of_memory(nbytes, max(0, added)))
        session.table.note_peak(added + nbytes)

    def _keep(self, outcome: Outcome, port: Port) -> None:
        if outcome.exact is None:
            self._keep_each(outcome, port)
            return
        # The usual case: each output is a tensor with known geometry.
        fresh = outcome.made(self.message.first)
        replaced = self.session.table.add_made(fresh)
        if replaced:
            port.retire(replaced)
        port.made(fresh)

    def _keep_each(self, outcome: Outcome, port: Port) -> None:
        session, first = self.session, self.message.first
        poisoned: dict[int, list[int]] = {id(failure): [] for failure in outcome.failures}
        fresh, failed = [], []
        for k, output in enumerate(outcome.outputs):
            if output is None:
                continue
            if isinstance(output, Failure):
                poisoned.setdefault(id(output), []).append(first + k)
                failed.append(Buffer(first + k, None, 0, poison=output))
            else:
                fresh.append(Buffer(first + k, output))
        replaced = session.table.add_made(fresh + failed)
        if replaced:
            port.retire(replaced)
        port.made(fresh)
        self._failures = [(failure, poisoned[id(failure)]) for failure in outcome.failures]
        if self._counts:
            self._tell_shortage_once()

    def _tell_shortage_once(self) -> None:
        """Have the first op that did not fit speak for the others: one shortage is one error."""
        told: list[tuple[Failure, list[int]]] = []
        first: list[int] | None = None
        for failure, buffers in self._failures:
            if failure.error == "OutOfMemoryError" and first is not None:
                first.extend(buffers)
                continue
            told.append((failure, buffers))
            if failure.error == "OutOfMemoryError":
                first = buffers
        self._failures = told

    def _outputs(self) -> list[int]:
        """Numbers of the buffers that the client keeps."""
        return [self.message.first + k for k in bits(self.message.live, 8 * len(self.message.live))]

    def _fail(self, error: str, text: str, op: int = 0, name: str = "") -> None:
        """The program did not run at all."""
        failure = Failure(self.number, op, name, error, text)
        outputs = self._outputs()
        for number in outputs:
            self.session.table.poison(number, failure)
        self._failures = [(failure, outputs)]

    def reply(self) -> None:
        """Report failures and learnt geometry."""
        for failure, buffers in self._failures:
            report_failure(self.session, failure, buffers)
        if self._learnt or self.message.report:
            self.session.send(messages.Learnt(self.number, self.message.program, self._learnt))
        if self.message.wanted:
            own_up(self)

    @property
    def reads_notes(self) -> bool:  # type: ignore[override]
        """Where an iteration ends."""
        return self.ends_iteration

    def spread(
        self, tainted: dict[int, Failure], wrong: Mapping[int, "ValueNote"]
    ) -> list[Failure]:
        """By the plan, op by op."""
        definition, inputs = self.definition, self.message.inputs
        if not isinstance(definition, Definition):
            return []
        names = {
            step.index: step.info.name for step in definition.plan.steps if step.index in wrong
        }
        own = {failure.op for failure, _ in self._failures}
        failures = {
            op: Failure(
                self.number, op, name, wrong[op].guard.error, wrong[op].guard.sentence(name)
            )
            for op, name in names.items()
            if op not in own
        }
        slots = {k: tainted[number] for k, number in enumerate(inputs) if number in tainted}
        began = follow(definition.plan, slots, failures, self._done)
        for slot, failure in slots.items():
            fresh = slot - len(inputs)
            tainted.setdefault(self.message.first + fresh if fresh >= 0 else inputs[slot], failure)
            if fresh >= 0:
                self.spoiled.add(fresh)
        return began

    def cancel(self, port: Port, failure: Failure) -> list[int]:
        """Poison what it would have made."""
        super().cancel(port, failure)
        self.session.drop(self.message.free, port)
        self.session.drop(self.dead, port)
        outputs = self._outputs()
        for number in outputs:
            self.session.table.poison(number, failure)
        return outputs
