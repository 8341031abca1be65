"""The slow way through a plan: step by step, looking at everything.

It serves first runs (every fresh output is compared with its claim), runs that failed on the way
or have poisoned inputs, runs whose memory is counted op by op, and runs that were suspended for
want of memory, or stopped and then told to go on. Variables are named as in the compiled function,
so that it can go on in the middle of one.

Invariant: a step with a poisoned input is skipped whole, so that a buffer older than the failure
keeps its last good value.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

from jgpu.broker.executor.programs.buffers import Failure
from jgpu.broker.executor.programs.checking.arguments import (
    Const,
    Draw,
    Many,
    Node,
    NumberValue,
    Ref,
)
from jgpu.broker.executor.programs.checking.guards import Guard, Noting, clamped
from jgpu.broker.executor.programs.checking.inference import flatten
from jgpu.broker.executor.programs.geometry import describe, geometry_of
from jgpu.broker.executor.programs.outcome import NeverFits, RunContext
from jgpu.broker.executor.programs.plan import PlanStep, ProgramPlan, draws
from jgpu.broker.executor.programs.precautions.language import Attempt
from jgpu.broker.executor.programs.running.clean import clear, grow, is_filled, settled
from jgpu.broker.executor.programs.running.rng import drawing
from jgpu.broker.executor.programs.running.shortage import is_certain, is_out_of_memory, yield_to
from jgpu.wire.messages import TensorReport
from jgpu.wire.program import NO_SLOT

__all__ = ["Halted", "OutOfMemory", "Walker"]

#: What a step's n-th return really is where it differs from the claim in stride only.
Restrides = set[tuple[int, int]]


class Halted(Exception):
    """The run was told to stop before a step; nothing of the step has happened."""

    def __init__(self, step: int, *, paused: bool = False) -> None:
        super().__init__(step)
        self.step = step
        #: it is to go on by itself
        self.paused = paused


class OutOfMemory(Exception):
    """A step did not get its memory; nothing of it has happened."""

    def __init__(self, step: int, error: BaseException, nbytes: int = 0) -> None:
        super().__init__(str(error))
        self.step = step
        #: not only perhaps
        self.certain = is_certain(error)
        #: what it asked for beyond its claims
        self.nbytes = nbytes


class Walker:
    """One run's variables, poison and findings."""

    def __init__(
        self,
        plan: ProgramPlan,
        env: dict[str, Any],
        values: Sequence[Any],
        generators: dict[int, torch.Generator],
        keep: Sequence[bool],
        restrides: Restrides,
    ) -> None:
        self.plan = plan
        #: variables by name, as in the compiled function
        self.env = env
        self.values = values
        self.generators = generators
        #: per slot whether it is kept to the end
        self.keep = keep
        #: what is known of returns that lie otherwise than claimed; first runs add to it
        self.restrides = restrides
        #: where guards note what they met; None where they look themselves
        self.notes: Noting | None = None
        self.poison: dict[int, Failure] = {}
        self.failures: list[Failure] = []
        self.learnt: list[TensorReport] = []
        #: steps whose outputs were compared with their claims
        self.verified: set[int] = set()
        #: bytes that the step asked for beyond its claims
        self._asked = 0
        #: bytes of the fresh storages that exist by what ops really returned, by slot, their sum,
        #: and the most that it was
        self._held: dict[int, int] = {}
        self._held_bytes = 0
        self.peak_bytes = 0
        #: what its claims count for its peak; None where it began in the midst of a run
        self.counted_bytes: int | None = None
        #: bytes of inputs that end with their last use, by slot; they come off `added_bytes` then
        self._lent: dict[int, int] = {}
        self._older_bytes = 0

    def lend(self, nbytes: Iterable[tuple[int, int]]) -> None:
        """Inputs by slot that end with their last use, and their bytes.

        Where a step's result shares an older storage nobody can tell when such a storage ends.
        """
        if not any(any(step.aliases) for step in self.plan.steps):
            self._lent.update(nbytes)

    @property
    def held_bytes(self) -> int:
        """Bytes of the fresh storages that exist, by what ops really returned."""
        return self._held_bytes

    @property
    def added_bytes(self) -> int:
        """By how much the storages have grown, fresh ones and inputs, since the run began."""
        return self._held_bytes + self._older_bytes

    def walk(self, start: int, context: RunContext, *, made: bool = False) -> None:
        """Do all steps from `start`; raises `OutOfMemory` or `Halted` at one that is not done.

        Where the first of them is `made`, what it returned is among the variables already.
        """
        self.notes, mark, pauses = context.notes, context.mark, context.pauses
        each = context.one_by_one
        for step in self.plan.steps[start:]:
            if not made:
                if pauses is not None and pauses(step.index - start, waits=each or step.waits):
                    raise Halted(step.index, paused=True)
                try:
                    mark[0] = step.index
                except ValueError:  # it was released
                    raise Halted(step.index) from None
            poison = next((self.poison[r.slot] for r in step.refs if r.slot in self.poison), None)
            if poison is not None:
                self.skip(step, poison)
            else:
                self._do(step, context, made=made)
            made = False
            self._drop(step)

    def fail(self, step: PlanStep, error: BaseException, work: int) -> None:
        """Note that a step failed and poison what it was to make."""
        text = str(error) or type(error).__name__
        failure = Failure(work, step.index, step.info.name, type(error).__name__, text)
        self.failures.append(failure)
        self.skip(step, failure)

    def skip(self, step: PlanStep, poison: Failure) -> None:
        """Leave a step out: its fresh slots are poisoned, older ones stay as they are."""
        for slot in step.outs:
            if slot != NO_SLOT:
                self.poison[slot] = poison
                self.env.pop(f"s{slot}", None)
        if step.overwrites != NO_SLOT and step.overwrites not in self.poison:
            self.env[f"s{step.overwrites}"].zero_()

    def _do(self, step: PlanStep, context: RunContext, *, made: bool) -> None:
        self._asked = 0
        try:
            if made:
                returned = [self.env.pop(f"s{slot}", None) for slot in step.outs]
            else:
                if context.allocate is not None:
                    context.allocate(step.index, self._bytes(step))
                for slot, nbytes in step.grows:
                    self._older_bytes += self._growth(slot, nbytes)
                    grow(self.env[f"s{slot}"], nbytes)
                returned = flatten(step.info, self._call(step, context))
            self._settle(step, returned, context)
        except NeverFits as error:
            self.fail(step, torch.OutOfMemoryError(str(error)), context.work)
        except Exception as error:
            if is_out_of_memory(error):
                yield_to(error, context.device)
                raise OutOfMemory(step.index, error, self._asked) from error
            self.fail(step, error, context.work)

    def _bytes(self, step: PlanStep) -> int:
        sizes, first = self.plan.slot_bytes, self.plan.inputs
        made = sum(sizes[slot - first] for slot in step.outs if slot != NO_SLOT)
        return made + sum(self._growth(slot, nbytes) for slot, nbytes in step.grows)

    def _growth(self, slot: int, nbytes: int) -> int:
        grown: torch.Tensor = self.env[f"s{slot}"]
        return max(0, nbytes - grown.untyped_storage().nbytes())

    def _claim(
        self, step: PlanStep, claim: Callable[[int], None], args: list[Any], kwargs: dict[str, Any]
    ) -> None:
        """Ask for the memory of a result whose size the data decide, before it is computed."""
        try:
            nbytes = step.size(Attempt(step.info, tuple(args), kwargs)) if step.size else 0
        except (IndexError, RuntimeError, TypeError, ValueError):
            return  # arguments that do not fit: the kernel has words for it
        self._asked = max(0, nbytes - self._bytes(step))
        if self._asked:
            claim(self._asked)

    def _call(self, step: PlanStep, context: RunContext) -> Any:
        args: list[Any] = []
        kwargs: dict[str, Any] = {}
        for argument, node in zip(step.info.arguments, step.bound, strict=True):
            filled = self._fill(node)
            for guard in step.guards:
                if guard.argument == argument.name:
                    filled = self._guarded(step, guard, filled)
            if not argument.kwarg_only:
                args.append(filled)
            elif filled is not None or argument.required:
                kwargs[argument.name] = filled
        if step.size is not None and context.claim is not None:
            self._claim(step, context.claim, args, kwargs)
        if step.info.seeded and step.info.generator is None:
            return drawing(self.generators[draws(step)[0]], step.call, *args, **kwargs)
        return step.call(*args, **kwargs)

    def _guarded(self, step: PlanStep, guard: Guard, filled: Any) -> Any:
        """The argument after a look at its index values."""
        index = filled if guard.place < 0 else filled[guard.place]
        index = clamped(step.info.name, index, guard, self.notes, step.index)
        if guard.place < 0:
            return index
        filled[guard.place] = index
        return filled

    def _fill(self, node: Node) -> Any:
        if isinstance(node, Const):
            return node.value
        if isinstance(node, Ref):
            return self._tensor(node)
        if isinstance(node, NumberValue):
            return node.of(self.values[node.index])
        if isinstance(node, Draw):
            return self.generators[node.index]
        if isinstance(node, Many):
            return [self._fill(leaf) for leaf in node.nodes]
        raise TypeError(node)

    def _tensor(self, ref: Ref) -> torch.Tensor:
        name = self.plan.names[ref.slot, ref.view]
        private = ref.slot in self.plan.private
        found = None if private else self.env.get(name)
        if found is None:
            found = self.plan.views[ref.view][0].over(self.env[f"s{ref.slot}"])
            if not private:
                self.env[name] = found
        return found

    def _settle(
        self, step: PlanStep, returned: list[torch.Tensor | None], context: RunContext
    ) -> None:
        """Take a step's returns into the slots, compared with the claims."""
        if len(returned) != len(step.outs):
            raise RuntimeError(f"It returned {len(returned)} tensors, not {len(step.outs)}.")
        self.verified.add(step.index)
        for place, (slot, made) in enumerate(zip(step.outs, returned, strict=True)):
            if slot == NO_SLOT:
                continue
            taken = self._take(step, place, made, context)
            if taken is not None:
                self.env[f"s{slot}"] = taken
                if not step.aliases[place]:
                    self._count(slot, taken)
                if step.zeroed:
                    clear(taken)
        self.peak_bytes = max(self.peak_bytes, self._held_bytes)

    def _count(self, slot: int, made: torch.Tensor | None) -> None:
        nbytes = 0 if made is None else made.untyped_storage().nbytes()
        self._held_bytes += nbytes - self._held.pop(slot, 0)
        if nbytes:
            self._held[slot] = nbytes

    def _take(
        self, step: PlanStep, place: int, made: torch.Tensor | None, context: RunContext
    ) -> torch.Tensor | None:
        claim = step.claims[place]
        fresh = made is not None and not step.aliases[place]
        if claim is None:  # sizes that only the run can tell
            if fresh:
                made = settled(made)
            geometry = geometry_of(made) if made is not None else None
            nbytes = made.untyped_storage().nbytes() if made is not None else 0
            self.learnt.append(TensorReport(step.index, place, geometry, nbytes))
            return made
        fits = made is not None and claim.fits(made)
        if not fits or context.report:
            geometry = geometry_of(made) if made is not None else None
            nbytes = made.untyped_storage().nbytes() if made is not None else 0
            self.learnt.append(TensorReport(step.index, place, geometry, nbytes))
        if fits and not (made is not None and fresh and not step.zeroed and not is_filled(made)):
            return made
        same = made is not None and made.dtype is claim.dtype and made.shape == claim.shape
        if same and made is not None and fresh:
            self.restrides.add((step.index, place))
            return claim.restrided(made)
        self._mistaken(step, place, made, context)
        return None

    def _mistaken(
        self, step: PlanStep, place: int, made: torch.Tensor | None, context: RunContext
    ) -> None:
        """Poison an output that is not what the program took it for.

        It counts as a failure only if a later op leans on it; one that is merely kept (a saved
        statistic that nobody may ever read) raises when it is used.
        """
        self.verified.discard(step.index)  # it never keeps its word, so it is never compiled
        slot, claim = step.outs[place], step.claims[place]
        text = (
            f"{step.info.name} returned {describe(geometry_of(made) if made is not None else None)}"
            f" where the program expects {describe(claim.geometry if claim else None)}."
        )
        failure = Failure(context.work, step.index, step.info.name, "RuntimeError", text)
        self.poison[slot] = failure
        if self.plan.last_use[slot] > step.index:
            self.failures.append(failure)

    def _drop(self, step: PlanStep) -> None:
        """Let go of what nobody needs after this step."""
        last = self.plan.last_use
        touched = {ref.slot for ref in step.refs}
        touched.update(slot for slot in step.outs if slot != NO_SLOT)
        for slot in touched:
            if last[slot] == step.index and not self.keep[slot]:
                for name in self.plan.variables.get(slot, (f"s{slot}",)):
                    self.env.pop(name, None)
                self._count(slot, None)
                self._older_bytes -= self._lent.pop(slot, 0)
