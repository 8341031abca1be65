"""Definitions: programs that were checked once, ready to run for any session.

`define` decodes, checks every op, argument, geometry and contract, and answers with a
`Definition` or a `ProgramError`; `Definition.run` then trusts what was checked and checks at each
run only what changes from run to run (bytes of the inputs, offsets, kinds of the parameters).

The first run goes step by step and compares every fresh output with its claim; once all steps
were seen to keep their word, runs are compiled. A compiled run compares what costs next to nothing;
if a step breaks its word there, the run goes on step by step, as do all that follow. Where ops run
ahead the pump compiles nothing: another thread does, and runs go step by step meanwhile.

Invariant: nothing in a `Definition` belongs to a session.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from threading import Lock
from typing import Any, Final, TypeAlias

import torch

from jgpu.accelerator import loading
from jgpu.broker.executor.programs.buffers import (
    Buffer,
    Failure,
    release_all,
    views_over,
)
from jgpu.broker.executor.programs.checking.check import check_program
from jgpu.broker.executor.programs.flags import check_flags, gate
from jgpu.broker.executor.programs.inputs import InputCheck
from jgpu.broker.executor.programs.kinds import KINDS, DeviceKind
from jgpu.broker.executor.programs.outcome import Outcome, RunContext, Stopped, Suspended
from jgpu.broker.executor.programs.plan import PlanStep, ProgramPlan, mask_bits
from jgpu.broker.executor.programs.running.callables import below_autograd
from jgpu.broker.executor.programs.running.compile import (
    Pause,
    Unlike,
    Variant,
    Written,
    compile_plan,
)
from jgpu.broker.executor.programs.running.interpret import (
    Halted,
    OutOfMemory,
    Walker,
)
from jgpu.broker.executor.programs.running.shortage import is_certain, is_out_of_memory, yield_to
from jgpu.errors import ProgramError
from jgpu.wire.messages import Number, TensorReport
from jgpu.wire.program import decode_program, program_hash

__all__ = ["Definition", "Masks", "define"]

_log = logging.getLogger(__name__)

#: Most masks of kept slots that get a function of their own.
_MAX_VARIANTS: Final = 8
#: Weight of the newest run in `predicted_s`.
_NEWEST: Final = 0.25
#: does ops without Python between them, where it was built
_ACCELERATOR: Final = loading.load()


#: masks of live fresh slots and of dead inputs, and the wanted slots
_Key: TypeAlias = tuple[bytes, bytes, tuple[int, ...]]


class Masks:
    """What a run's bit masks say, read once."""

    __slots__ = ("dead", "exact", "keep", "key", "live", "made", "transient", "variant", "wanted")

    def __init__(
        self, plan: ProgramPlan, live: bytes, dead: bytes, wanted: tuple[int, ...]
    ) -> None:
        self.key = (live, dead, wanted)
        self.wanted = tuple(k for k in wanted if k < plan.fresh)
        inputs, fresh = mask_bits(dead, plan.inputs), mask_bits(live, plan.fresh)
        #: per slot whether it is kept to the end
        self.keep = [not bit for bit in inputs] + fresh
        #: input slots that end with the run, fresh slots (counted from 0) that outlive it
        self.dead = tuple(k for k, bit in enumerate(inputs) if bit)
        self.live = tuple(k for k, bit in enumerate(fresh) if bit)
        #: the function that such runs are a call of, once `straight` has said so
        self.variant: Variant | None = None
        #: most bytes of fresh slots at once, by their claims
        self.transient = plan.transient_bytes(live)
        #: fresh slots that outlive the run, and the bytes of each by its claim
        self.made = tuple((k, plan.slot_bytes[k]) for k in self.live)
        #: the same with what a compiled run makes of each, storage included, if that is known
        self.exact = tuple(
            (k, None if spec is None else plan.slot_bytes[k], spec)
            for k in self.live
            for spec in [plan.exact[k]]
        )


class Definition:
    """A checked program for one kind of device."""

    def __init__(self, key: bytes, plan: ProgramPlan, device: DeviceKind) -> None:
        #: the executor's hash of the bytes
        self.hash = key
        self.plan = plan
        self._device = device
        #: numbers of input slots, of fresh slots and of ops
        self.inputs = plan.inputs
        self.fresh = plan.fresh
        self.ops = len(plan.steps)
        #: their names, a line each
        self.names = "\n".join(step.info.name for step in plan.steps).encode()
        #: EWMA of the seconds a run took, None before the first `observe`
        self.predicted_s: float | None = None
        #: outputs that are known to lie otherwise than claimed, for sessions that come later
        self.learnt: tuple[TensorReport, ...] = ()
        self._lock = Lock()
        #: functions by what they keep and tell; None while another thread compiles one
        self._variants: dict[_Key, Variant | None] = {}
        #: steps whose outputs have not been compared with their claims yet
        self._unseen = set(range(self.ops))
        self._restrides: set[tuple[int, int]] = set()
        #: a compiled step returned something else than the same step before: never again
        self._broken = False
        self._dynamic = any(step.dynamic or step.size for step in plan.steps)
        #: most bytes that a run was seen to need beyond what is counted of its claims: results
        #: whose size the data decides, kernels that take more than they return, workspaces where
        #: the allocator tells of them. An estimate: the next run may need less.
        self.surplus_bytes = 0
        self._masks: dict[_Key, Masks] = {}
        #: has something computed by another thread, then calls with the result on this one; runs
        #: are walked until their function is there. None: it is compiled where it is needed.
        self.aside: Callable[[Callable[[], Variant], Callable[[Any], None]], None] | None = None
        self._given = InputCheck(plan)
        #: the buffers of these numbers in a table, if all of them and the parameters fit
        self.fitting = self._given.fitting

    @property
    def written(self) -> frozenset[int]:
        """Input slots that an op may write."""
        return self.plan.written

    def run(
        self,
        buffers: Sequence[Buffer],
        params: Sequence[Number],
        live: bytes,
        dead: bytes,
        context: RunContext,
    ) -> Outcome:
        """Run it. Unpoisoned inputs must be on the device; dead ones are released on the way.

        Raises `ProgramError` before anything ran (see `InputCheck`); failures of ops are in the
        outcome, and so are running out of memory (`Outcome.suspended`) and being told to stop
        (`Outcome.stopped`).
        """
        check = self._given
        poison: dict[int, Failure] = {}
        if not check.check(buffers, params):
            poison = {k: b.poison for k, b in enumerate(buffers) if b.poison is not None}
        generators = self._generators(context.generators) if self.plan.generators else {}
        values = check.numbers(params) if check.pairs else params
        key = (live, dead, context.wanted if context.tell else ())
        masks = context.masks
        if masks is None or masks.key != key:
            masks = self.masks(*key)
        seen = not (self._unseen or self._dynamic or self._broken)
        slow = not seen or context.report or context.one_by_one or poison
        variant = None if slow or context.allocate is not None else self._variant(masks)
        if variant is not None and not self.plan.bases:
            given = check.seen(buffers, params)
            if masks.dead:
                release_all([buffers[slot] for slot in masks.dead])
            return self._fast(variant, given, values, generators, masks, context)
        tensors = self._take(buffers, params, poison)
        release_all([buffers[slot] for slot in masks.dead])
        if variant is None:
            walker = Walker(self.plan, tensors, values, generators, masks.keep, self._restrides)
            walker.poison.update(poison)
            walker.lend((slot, buffers[slot].nbytes) for slot in masks.dead)
            walker.counted_bytes = masks.transient
            return self._walk_watched(walker, 0, context)
        given = list(tensors.values())
        del tensors
        return self._fast(variant, given, values, generators, masks, context)

    def straight(self, live: bytes, dead: bytes, wanted: tuple[int, ...]) -> Masks | None:
        """What the masks of a run say that calls a function that many called before; else None."""
        masks = self._masks.get((live, dead, wanted)) or self.masks(live, dead, wanted)
        if masks.variant is None:
            plan = self.plan
            if self._unseen or self._dynamic or plan.resized or plan.bases:
                return None
            masks.variant = self._variants.get(masks.key)
        return None if self._broken or masks.variant is None else masks

    def run_straight(
        self,
        buffers: Sequence[Buffer],
        params: Sequence[Number],
        masks: Masks,
        context: RunContext,
    ) -> Outcome:
        """`run`, of what is `fitting`, with masks that are `straight`."""
        variant = masks.variant
        assert variant is not None
        generators = self._generators(context.generators) if self.plan.generators else {}
        values = self._given.numbers(params) if self._given.pairs else params
        given = self._given.seen(buffers, params)
        if masks.dead:
            release_all([buffers[slot] for slot in masks.dead])
        return self._fast(variant, given, values, generators, masks, context)

    def growth_bytes(self, buffers: Sequence[Buffer]) -> int:
        """Bytes by which the run makes its inputs' storages larger, as far as it is foretold."""
        sizes = zip(self.plan.resized, self.plan.resized_bytes, strict=True)
        return sum(max(0, nbytes - buffers[k].nbytes) for k, nbytes in sizes)

    def resume(self, halted: Suspended | Stopped, context: RunContext) -> Outcome:
        """Go on at the op that did not get its memory, or was not begun; may halt again."""
        return self._walk_watched(halted.state, halted.op, context)

    def leave(self, halted: Suspended | Stopped, failure: Failure) -> Outcome:
        """Do no more of it.

        Fresh slots that no op left out would have written hold their values; all others are
        poisoned with `failure`. Inputs hold what the ops made of them that were done.
        """
        walker: Walker = halted.state
        outputs: list[torch.Tensor | Failure | None] = []
        for k, last in enumerate(self.plan.last_write):
            slot = self.inputs + k
            made = failure if last >= halted.op else walker.env.get(f"s{slot}")
            outputs.append(walker.poison.get(slot, made) if walker.keep[slot] else None)
        return Outcome(outputs, [*walker.failures, failure])

    def abandon(self, suspended: Suspended, context: RunContext) -> Outcome:
        """Give up waiting for memory: the op fails with the allocator's text, the rest goes on."""
        walker: Walker = suspended.state
        step = self.plan.steps[suspended.op]
        kind = torch.OutOfMemoryError if suspended.certain else RuntimeError
        walker.fail(step, kind(suspended.text), context.work)
        return self._walk(walker, suspended.op + 1, context)

    def output_bytes(self, live: bytes) -> int:
        """Bytes of the fresh slots that outlive the run; `live` as in the message `Run`."""
        return self.plan.output_bytes(live)

    def slot_bytes(self) -> tuple[int, ...]:
        """Bytes of each fresh slot by its claimed geometry; 0 where it shares an older storage."""
        return self.plan.slot_bytes

    def transient_bytes(self, live: bytes, dead: bytes = b"") -> int:
        """Most bytes of fresh slots that exist at once during the run (live outputs included).

        By the claims of the ops; runs may need more (`surplus_bytes`). What dead inputs give back
        on the way is not counted in.
        """
        return self.plan.transient_bytes(live)

    def observe(self, seconds: float) -> None:
        """Note how long a run took."""
        before = self.predicted_s
        self.predicted_s = seconds if before is None else before + _NEWEST * (seconds - before)

    def is_ready(self, live: bytes, dead: bytes, wanted: tuple[int, ...]) -> bool:
        """Whether a run with these masks does nothing but the ops, as many did before it.

        Not before each op was seen, where the data decide sizes, or where a function is yet to be
        compiled for these masks.
        """
        known = self._variants.get((live, dead, wanted)) is not None
        return known and not (self._dynamic or self._broken)

    def masks(self, live: bytes, dead: bytes, wanted: tuple[int, ...]) -> Masks:
        """What the bit masks of a run say."""
        key = (live, dead, wanted)
        found = self._masks.get(key)
        if found is None:
            if len(self._masks) >= 8 * _MAX_VARIANTS:
                self._masks.clear()
            found = self._masks[key] = Masks(self.plan, live, dead, wanted)
        return found

    def _generators(self, given: Mapping[int, torch.Generator]) -> dict[int, torch.Generator]:
        try:
            return {index: given[index] for index in self.plan.generators}
        except KeyError as error:
            raise ProgramError(f"The session has no generator {error}.") from None

    def _take(
        self, buffers: Sequence[Buffer], params: Sequence[Number], poison: Mapping[int, Failure]
    ) -> dict[str, Any]:
        """The input tensors by variable name."""
        plan = self.plan
        taken = plan.taken
        if poison:
            taken = tuple(each for each in taken if each[0] not in poison)
        if not self._given.lifted:
            tensors = views_over(buffers, taken, plan.views, params)
        else:
            with below_autograd():
                tensors = views_over(buffers, taken, plan.views, params)
        for slot in plan.bases:
            if slot not in poison:
                tensors[f"s{slot}"] = buffers[slot].bytes()
        return tensors

    def _walk_watched(self, walker: Walker, start: int, context: RunContext) -> Outcome:
        """Walk, and note what was needed beyond the claims: part by part, where it halts."""
        held = walker.held_bytes
        watch = context.watch_peak() if context.watch_peak is not None else None
        outcome = self._walk(walker, start, context)
        if watch is not None:
            peak = held + watch(walker.held_bytes - held)
            walker.peak_bytes = max(walker.peak_bytes, peak)
        whole = outcome.suspended is None and outcome.stopped is None
        if whole and not outcome.failures and walker.counted_bytes is not None:
            surplus = walker.peak_bytes - walker.counted_bytes
            self.surplus_bytes = max(self.surplus_bytes, surplus)
        return outcome

    def _walk(
        self, walker: Walker, start: int, context: RunContext, *, made: bool = False
    ) -> Outcome:
        if context.running is not None:
            context.running.walker = walker
        try:
            with gate.passing(self.plan.flags), below_autograd():
                walker.walk(start, context, made=made)
        except OutOfMemory as short:
            sizes = self.plan.slot_bytes
            outs = self.plan.steps[short.step].outs
            nbytes = sum(sizes[slot - self.inputs] for slot in outs if slot >= 0) + short.nbytes
            return Outcome(
                suspended=Suspended(short.step, nbytes, str(short), walker, short.certain)
            )
        except Halted as halted:
            return Outcome(stopped=Stopped(halted.step, walker, halted.paused))
        with self._lock:
            self._unseen -= walker.verified
            if not self._unseen and not context.report and walker.learnt:
                self.learnt = tuple(walker.learnt)
        outputs = [
            walker.poison.get(slot, walker.env.get(f"s{slot}")) if walker.keep[slot] else None
            for slot in range(self.inputs, self.inputs + self.fresh)
        ]
        return Outcome(outputs, walker.failures, tuple(walker.learnt))

    def _fast(
        self,
        variant: Variant,
        given: list[torch.Tensor],
        values: Sequence[Any],
        generators: dict[int, torch.Generator],
        masks: Masks,
        context: RunContext,
    ) -> Outcome:
        said = given, values, generators, context.notes, context.tell
        made: Sequence[torch.Tensor]
        running = context.running
        if variant.straight is not None and type(context.mark) is memoryview:
            stop, mark = None, context.mark
            if running is not None:
                stop, mark = running.stopped_by(), running.word
            gate.enter(self.plan.flags)
            try:
                made = _ACCELERATOR.run(variant.straight, *said, mark, stop)
            finally:
                gate.leave()
            if type(made) is tuple:
                step, env, why = made
                if why is True:
                    walker = self._walker_from(env, values, generators, masks)
                    return Outcome(stopped=Stopped(step, walker, paused=False))
                at = self.plan.steps[step], env, why is None
                return self._recover(why or Unlike(), at, values, generators, masks, context)
        else:
            written = variant.written
            if running is not None:
                running.code = written.code
            try:
                with gate.passing(self.plan.flags), below_autograd():
                    made = written.function(*said, context.mark, context.pauses)
            except Exception as error:
                at = self._where(error, written)
                return self._recover(error, at, values, generators, masks, context)
        kept, fresh = variant.kept, self.fresh
        if len(made) == fresh == len(masks.live):
            return Outcome(list(made), exact=masks.exact)
        outputs: list[torch.Tensor | Failure | None] = [None] * fresh
        told = made if kept == masks.live else [made[slot] for slot in masks.live]
        for slot, tensor in zip(masks.live, told, strict=True):
            outputs[slot] = tensor
        return Outcome(outputs, exact=masks.exact)

    def _variant(self, masks: Masks) -> Variant | None:
        """The function for these masks; None while another thread compiles it."""
        key, wanted = masks.key, masks.wanted
        found = self._variants.get(key)
        if found is None:
            keep = masks.keep
            if key not in self._variants and len(self._variants) >= _MAX_VARIANTS:
                # one function for all further masks: it keeps everything to the end
                key, wanted, keep = (b"all", b"all", ()), (), [True] * (self.inputs + self.fresh)
                found = self._variants.get(key)
            if key not in self._variants:
                task = partial(
                    compile_plan,
                    self.plan,
                    keep,
                    self._restrides,
                    clamps=KINDS[self._device].trusts_values,
                    wanted=wanted,
                    ahead=self.aside is not None,
                )
                if self.aside is None:
                    found = self._variants[key] = task()
                else:
                    self._variants[key] = None
                    self.aside(task, partial(self._compiled, key))
        return found

    def _compiled(self, key: "_Key", result: Any) -> None:
        """Another thread is through with a function; where it failed, runs are walked for good."""
        if isinstance(result, Variant):
            self._variants[key] = result
        else:
            del self._variants[key]
            self._broken = True
            _log.error("a program could not be compiled", exc_info=result)

    def _where(self, error: Exception, written: Written) -> tuple[PlanStep, dict[str, Any], bool]:
        """Of an exception in the function its step, the variables, and whether it compared."""
        trace = error.__traceback__
        while trace is not None and trace.tb_frame.f_code is not written.code:
            trace = trace.tb_next
        if trace is None:
            raise error
        step = self.plan.steps[written.step_of_line[trace.tb_lineno]]
        return step, dict(trace.tb_frame.f_locals), trace.tb_lineno in written.comparisons

    def _walker_from(
        self,
        env: dict[str, Any],
        values: Sequence[Any],
        generators: dict[int, torch.Generator],
        masks: Masks,
    ) -> Walker:
        """What goes on with a compiled run's variables."""
        return Walker(self.plan, env, values, generators, masks.keep, self._restrides)

    def _recover(
        self,
        error: Exception,
        at: tuple[PlanStep, dict[str, Any], bool],
        values: Sequence[Any],
        generators: dict[int, torch.Generator],
        masks: Masks,
        context: RunContext,
    ) -> Outcome:
        """Go on step by step after an exception in a compiled run."""
        step, env, compared = at
        walker = self._walker_from(env, values, generators, masks)
        if compared:
            self._broken = True
            error.__traceback__ = None
            return self._walk(walker, step.index, context, made=True)
        paused = isinstance(error, Pause)
        if paused or (context.running is not None and context.running.refused(step.index)):
            error.__traceback__ = None
            return Outcome(stopped=Stopped(step.index, walker, paused))
        if is_out_of_memory(error):
            nbytes = sum(
                self.plan.slot_bytes[slot - self.inputs] for slot in step.outs if slot >= 0
            )
            text, certain = str(error), is_certain(error)
            error.__traceback__ = None
            yield_to(error, context.device)
            return Outcome(suspended=Suspended(step.index, nbytes, text, walker, certain))
        walker.fail(step, error, context.work)
        error.__traceback__ = None
        return self._walk(walker, step.index + 1, context)


def define(data: bytes, device: DeviceKind) -> Definition:
    """Check a program's canonical bytes for a kind of device; raises `ProgramError`."""
    program = decode_program(data)
    check_flags(program.flags)
    with gate.passing(program.flags):  # what ops return depends on the default dtype
        plan = check_program(program, device, KINDS[device].place)
    return Definition(program_hash(data), plan, device)
