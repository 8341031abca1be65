"""A plan as instructions for the accelerator, which does ops without Python between them.

The walk over a plan is the same as in `compile`, whose function serves runs that halt before an
op that waits. The accelerator calls Python for a guard, a precaution, and a draw by an op that
takes no generator.

Invariant: `compile`'s function and these instructions return the same, fail at the same steps, and
leave the same variables where they fail.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final, TypeAlias

from jgpu.accelerator import loading
from jgpu.broker.executor.programs.checking.arguments import (
    Draw,
    Many,
    Node,
    NumberValue,
    Ref,
    host_scalar,
)
from jgpu.broker.executor.programs.checking.guards import Guard, IndexGuard, check_range, clamped
from jgpu.broker.executor.programs.checking.inference import flatten
from jgpu.broker.executor.programs.geometry import ViewSpec, is_contiguous
from jgpu.broker.executor.programs.plan import PlanStep, ProgramPlan, draws
from jgpu.broker.executor.programs.running.callables import trimmed
from jgpu.broker.executor.programs.running.clean import clear, has_holes
from jgpu.broker.executor.programs.running.rng import drawing
from jgpu.broker.executor.programs.running.walking import PlanWalk
from jgpu.wire.program import NO_SLOT

__all__ = ["assemble"]

#: as in `instructions.h`, in its order
_MARK, _OP, _CALL, _VIEW, _CHECK, _ZERO, _TELL, _DROP, _LOOK, _LAY = range(10)
_CONSTANT, _REGISTER, _NUMBER, _SEVERAL, _GENERATOR, _NOTES = range(6)
_ANY, _IN_ROWS, _STRIDED = range(3)

#: its kind, and what it is: a value, a place, or a tuple of operands
_Operand: TypeAlias = tuple[int, Any]
_NOTHING: Final[_Operand] = (_NOTES, None)


def assemble(
    plan: ProgramPlan,
    keep: Sequence[bool],
    restrides: set[tuple[int, int]],
    tells: Mapping[int, Sequence[int]],
    *,
    clamps: bool = False,
) -> Any:
    """What `run` of the accelerator takes; None where there is none, or the plan is not for it.

    `keep`, `restrides` and `clamps` are `compile_plan`'s; `tells` are fresh slots to tell, counted
    from 0, by the step after which nobody writes them.
    """
    library = loading.load()
    if library is None or plan.private:
        return None
    unclaimed = any(
        slot != NO_SLOT and claim is None
        for step in plan.steps
        for slot, claim in zip(step.outs, step.claims, strict=True)
    )
    if unclaimed or any(step.grows for step in plan.steps):
        return None
    told = _Assembler(plan, keep, restrides, clamps).told(tells)
    try:
        return library.assemble(told)
    except (RuntimeError, TypeError):  # torch does not take an argument: the function says which
        return None


class _Assembler(PlanWalk):
    def __init__(
        self,
        plan: ProgramPlan,
        keep: Sequence[bool],
        restrides: set[tuple[int, int]],
        clamps: bool,
    ) -> None:
        super().__init__(plan, keep, restrides)
        self.clamps = clamps
        self.instructions: list[tuple[Any, ...]] = []
        #: names of the registers, by place; None for what has no name
        self.names: list[str | None] = []
        self.places: dict[str, int] = {}
        self.step = -1
        #: registers without a name that end with the step
        self.passing: list[int] = []

    def told(self, tells: Mapping[int, Sequence[int]]) -> tuple[Any, ...]:
        """Names, inputs, what is returned, instructions."""
        plan = self.plan
        taken = []
        for slot, _, name in plan.taken:
            self.variables.setdefault(slot, set()).add(name)
            taken.append(self._place(name))
        for step in plan.steps:
            self.step = step.index
            self._add(_MARK)
            self._write(step)
            for k in tells.get(step.index, ()):
                self._add(_TELL, k, self._place(f"s{plan.inputs + k}"))
            self._delete(step)
        kept = (k for k in range(plan.fresh) if self.keep[plan.inputs + k])
        returned = tuple(self._place(f"s{plan.inputs + k}") for k in kept)
        return tuple(self.names), tuple(taken), returned, tuple(self.instructions)

    def _add(self, kind: int, *rest: Any) -> None:
        self.instructions.append((kind, self.step, *rest))

    def _place(self, name: str) -> int:
        place = self.places.get(name)
        if place is None:
            place = self.places[name] = len(self.names)
            self.names.append(name)
        return place

    def _passing(self) -> int:
        place = len(self.names)
        self.names.append(None)
        self.passing.append(place)
        return place

    def _write(self, step: PlanStep) -> None:
        outs: tuple[int, ...] = ()
        if any(slot != NO_SLOT for slot in step.outs):
            outs = tuple(-1 if s == NO_SLOT else self._place(f"s{s}") for s in step.outs)
        self._call(step, outs)
        for place, slot in enumerate(step.outs):
            claim = step.claims[place]
            if slot == NO_SLOT or claim is None:
                continue
            self.variables.setdefault(slot, set()).add(f"s{slot}")
            at = self._place(f"s{slot}")
            restride = (step.index, place) in self.restrides
            self._check(slot, at, claim, layout=not restride)
            if restride and claim.bits:
                self._add(_CALL, claim.restrided, ((_REGISTER, at),), (), (at,))
            elif restride:
                elements = claim.nbytes // claim.dtype.itemsize
                self._add(_LAY, at, elements, claim.shape, claim.stride, claim.offset)
            if step.zeroed and has_holes(claim):
                self._add(_CALL, clear, ((_REGISTER, at),), (), ())
            elif step.zeroed:
                self._add(_ZERO, at)

    def _check(self, slot: int, at: int, claim: ViewSpec, *, layout: bool) -> None:
        kind = _ANY
        if layout and self.leans_on_layout(slot, claim):
            kind = _IN_ROWS if is_contiguous(claim.geometry) else _STRIDED
        self._add(_CHECK, at, claim.shape, claim.dtype, kind, claim.stride, claim.offset)

    def _call(self, step: PlanStep, outs: tuple[int, ...]) -> None:
        info = step.info
        given: list[_Operand] = []
        for argument, node in zip(info.arguments, step.bound, strict=True):
            leaves = node.nodes if isinstance(node, Many) else (node,)
            parts = [self._operand(leaf) for leaf in leaves]
            for guard in step.guards:
                if guard.argument == argument.name:
                    place = max(guard.place, 0)
                    parts[place] = self._guarded(step, guard, parts[place])
            given.append((_SEVERAL, tuple(parts)) if isinstance(node, Many) else parts[0])
        is_seeded = info.seeded and info.generator is None
        call = _in_python(step)
        if call is None and not is_seeded:
            name, _, overload = info.name.partition(".")
            overload = "" if overload == "default" else overload
            self._add(_OP, name, overload, tuple(given), outs)
            return
        positional, named = trimmed(step, given)
        call = call or info.call
        if is_seeded:
            positional = [(_GENERATOR, draws(step)[0]), (_CONSTANT, call), *positional]
            call = drawing
        if outs:
            call = partial(_flat, info, call)
        operands = (*positional, *(operand for _, operand in named))
        self._add(_CALL, call, operands, tuple(name for name, _ in named), outs)

    def _guarded(self, step: PlanStep, guard: Guard, value: _Operand) -> _Operand:
        """A look at a value; gives what to pass instead of it."""
        told = ((_CONSTANT, step.info.name), value, (_CONSTANT, guard))
        if not self.clamps:
            if value[0] == _REGISTER and isinstance(guard, IndexGuard) and guard.plain:
                self._add(_LOOK, value[1], guard.low, guard.high, check_range, told)
            else:
                self._add(_CALL, check_range, told, (), ())
            return value
        at = self._passing()
        self._add(_CALL, clamped, (*told, _NOTHING, (_CONSTANT, step.index)), (), (at,))
        return _REGISTER, at

    def _operand(self, node: Node) -> _Operand:
        if isinstance(node, Ref):
            return _REGISTER, self._view(node)
        if isinstance(node, NumberValue):
            if node.dtype is None:
                return _NUMBER, node.index
            at = self._passing()
            given = ((_NUMBER, node.index), (_CONSTANT, node.dtype))
            self._add(_CALL, host_scalar, given, (), (at,))
            return _REGISTER, at
        if isinstance(node, Draw):
            return _GENERATOR, node.index
        if isinstance(node, Many):
            return _SEVERAL, tuple(self._operand(leaf) for leaf in node.nodes)
        return _CONSTANT, node.value

    def _view(self, ref: Ref) -> int:
        name = self.plan.names[ref.slot, ref.view]
        made = self.variables.setdefault(ref.slot, set())
        at = self._place(name)
        if name in made:
            return at
        made.add(name)
        spec = self.plan.views[ref.view][0]
        base = self._place(f"s{ref.slot}")
        if self.is_laid_over(ref.slot, spec):
            self._add(_VIEW, at, base, spec.shape, spec.stride, spec.offset)
        else:
            self._add(_CALL, spec.over, ((_REGISTER, base),), (), (at,))
        return at

    def _delete(self, step: PlanStep) -> None:
        gone = [self.places[name] for name in self.gone_after(step)]
        gone += self.passing
        self.passing = []
        if gone:
            self._add(_DROP, tuple(sorted(gone)))


def _in_python(step: PlanStep) -> Callable[..., Any] | None:
    """What is called for the op; None where it is the op itself, without Python."""
    return step.precaution


def _flat(info: Any, call: Callable[..., Any], *given: Any, **named: Any) -> list[Any]:
    return flatten(info, call(*given, **named))
