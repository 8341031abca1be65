"""A plan as one straight-line Python function: one op a line, nothing decided while it runs.

Names in the text come from counters; ops, constants and geometries are bound as globals of the
function. Nothing that a client sends becomes text. Views are made once and reused, slots that
nobody keeps are deleted after their last use, so each mask of kept slots has its own variant.
What an op returns is compared with its claim in the numbers that cost next to nothing: a call that
is made otherwise than the one that was tried ends as an error, not as a number.

Invariant: every line belongs to exactly one step (`Written.step_of_line`), so that an exception
says which op failed and what was there.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import CodeType
from typing import Any

import torch

from jgpu.broker.executor.programs.checking.arguments import (
    Draw,
    Many,
    Node,
    NumberValue,
    Ref,
    host_scalar,
)
from jgpu.broker.executor.programs.checking.guards import Guard, check_range, clamped
from jgpu.broker.executor.programs.checking.inference import flatten
from jgpu.broker.executor.programs.geometry import ViewSpec, is_contiguous
from jgpu.broker.executor.programs.plan import PlanStep, ProgramPlan, draws
from jgpu.broker.executor.programs.running.assembly import assemble
from jgpu.broker.executor.programs.running.callables import quickest, trimmed
from jgpu.broker.executor.programs.running.clean import clear, grow, has_holes, settled
from jgpu.broker.executor.programs.running.rng import drawing
from jgpu.broker.executor.programs.running.walking import PlanWalk
from jgpu.wire.limits import WANTED_BYTES
from jgpu.wire.program import NO_SLOT

__all__ = ["Pause", "Unlike", "Variant", "Written", "compile_plan"]


class Pause(Exception):
    """The next op would wait for the device; nothing of it has happened."""


class Unlike(Exception):
    """A step of a compiled plan returned something else than it claims."""


@dataclass(frozen=True, slots=True)
class Written:
    """The function."""

    #: inputs, parameters, generators, notes, `tell`, `mark`, `pauses`
    function: Callable[..., tuple[Any, ...]]
    code: CodeType
    #: step index by line number
    step_of_line: list[int]
    #: lines that compare what a step returned with its claims
    comparisons: frozenset[int]


class Variant:
    """A compiled plan for one set of kept slots: a function, and instructions that do the same.

    The function is written when it is first asked for, where there are instructions: by every lane
    that asks before it is there, each for itself.
    """

    __slots__ = ("_write", "_written", "kept", "straight")

    def __init__(self, kept: tuple[int, ...], write: Callable[[], Written], straight: Any) -> None:
        #: fresh slots (counted from 0) that are returned, in order
        self.kept = kept
        #: for the accelerator (see `assembly`); None where the function does it all
        self.straight = straight
        self._write = write
        self._written = None if straight is not None else write()

    @property
    def written(self) -> Written:
        """The function."""
        if self._written is None:
            self._written = self._write()
        return self._written


def compile_plan(
    plan: ProgramPlan,
    keep: Sequence[bool],
    restrides: set[tuple[int, int]],
    *,
    clamps: bool = False,
    wanted: Sequence[int] = (),
    ahead: bool = False,
) -> Variant:
    """Compile a plan; `keep` says for each slot whether it outlives the run.

    It tells what small slots among `wanted` (fresh ones, counted from 0) hold as soon as no step
    will write them any more. With `clamps` guarded values are replaced and noted, without it looked
    at and refused. `ahead`: for a device where ops run ahead; a run that waits there halts before
    the op that does, which only the function can.
    """
    #: fresh slots to tell after each step
    tells: dict[int, list[int]] = {}
    for k in wanted:
        if 0 < plan.slot_bytes[k] <= WANTED_BYTES and keep[plan.inputs + k]:
            tells.setdefault(plan.last_write[k], []).append(k)
    halts = ahead and any(step.waits for step in plan.steps)
    straight = None if halts else assemble(plan, keep, restrides, tells, clamps=clamps)
    kept = tuple(k for k in range(plan.fresh) if keep[plan.inputs + k])
    return Variant(kept, lambda: _Writer(plan, keep, restrides, clamps, tells).written(), straight)


class _Writer(PlanWalk):
    def __init__(
        self,
        plan: ProgramPlan,
        keep: Sequence[bool],
        restrides: set[tuple[int, int]],
        clamps: bool,
        tells: Mapping[int, Sequence[int]],
    ) -> None:
        super().__init__(plan, keep, restrides)
        self.clamps = clamps
        self.lines = ["def run(V, P, G, F, T, M, D=None):"]
        #: step of each line, line numbers counting from 1
        self.step_of_line = [-1, -1]
        self.globals: dict[str, Any] = {"__builtins__": {}}
        self.constants: dict[int, str] = {}
        self.step = -1
        self.tells = tells
        self.comparisons: set[int] = set()
        #: guarded values of the step that is being written
        self.clamped: list[str] = []

    def written(self) -> Written:
        self._prologue()
        for step in self.plan.steps:
            self.step = step.index
            self._write(step)
            for k in self.tells.get(step.index, ()):
                self._line(f"T({k}, s{self.plan.inputs + k})")
            self._delete(step)
        inputs = self.plan.inputs
        kept = (k for k in range(self.plan.fresh) if self.keep[inputs + k])
        self.step = len(self.plan.steps)
        self._line("return (" + "".join(f"s{inputs + k}, " for k in kept) + ")")
        space = self.globals
        exec(compile("\n".join(self.lines), "<program>", "exec"), space)
        function = space["run"]
        compared = frozenset(self.comparisons)
        return Written(function, function.__code__, self.step_of_line, compared)

    def _line(self, text: str) -> None:
        self.lines.append("    " + text)
        self.step_of_line.append(self.step)

    def _bind(self, value: Any) -> str:
        """A global's name for a value; `self.globals` keeps the value, hence its id, alive."""
        name = self.constants.get(id(value))
        if name is None:
            name = self.constants[id(value)] = f"k{len(self.constants)}"
            self.globals[name] = value
        return name

    def _prologue(self) -> None:
        names = []
        for slot, _, name in self.plan.taken:
            names.append(name)
            self.variables.setdefault(slot, set()).add(name)
        for slot in self.plan.bases:
            names.append(f"s{slot}")
            self.variables.setdefault(slot, set()).add(f"s{slot}")
        if names:
            self._line("(" + "".join(f"{name}, " for name in names) + ") = V")
            self.globals["clear"] = list.clear
            self._line("clear(V)")
        if self.plan.params:
            self._line("(" + "".join(f"p{k}, " for k in range(len(self.plan.params))) + ") = P")
        for index in self.plan.generators:
            self._line(f"g{index} = G[{index}]")

    def _write(self, step: PlanStep) -> None:
        if step.waits:
            pause = self._bind(Pause)
            self._line(f"if D is not None and D({step.index}, waits=True): raise {pause}")
        self._line(f"M[0] = {step.index}")
        for slot, nbytes in step.grows:
            self._line(f"{self._bind(grow)}(s{slot}, {nbytes})")
        call = self._call(step)
        tensors = [kind for kind in step.info.returns if kind != "other"]
        if not any(slot != NO_SLOT for slot in step.outs):
            self._line(call)
            return
        targets = [f"s{slot}" if slot != NO_SLOT else "_" for slot in step.outs]
        if tensors == ["tensor"] and len(step.info.returns) == 1:
            self._line(f"{targets[0]} = {call}")
        else:
            if len(tensors) < len(step.info.returns) or (len(tensors) > 1 and "tensors" in tensors):
                call = f"{self._bind(flatten)}({self._bind(step.info)}, {call})"
            self._line("(" + "".join(f"{target}, " for target in targets) + f") = {call}")
            if "_" in targets:
                self._line("_ = None")
        self._finish(step)

    def _finish(self, step: PlanStep) -> None:
        for place, slot in enumerate(step.outs):
            if slot == NO_SLOT:
                continue
            name = f"s{slot}"
            self.variables.setdefault(slot, set()).add(name)
            claim = step.claims[place]
            restride = (step.index, place) in self.restrides
            if claim is not None:
                self._compare(slot, claim, layout=not restride)
            if claim is not None and restride:
                self._line(f"{name} = {self._bind(claim.restrided)}({name})")
            if claim is None and not step.zeroed:
                self._line(f"{name} = {self._bind(settled)}({name})")
            if step.zeroed and has_holes(claim):
                self._line(f"{self._bind(clear)}({name})")
            elif step.zeroed:
                self._line(f"{name}.zero_()")

    def _compare(self, slot: int, claim: ViewSpec, *, layout: bool) -> None:
        """Write a look at what fills a slot; at its layout if anybody leans on that.

        Of a tensor that has the claimed shape, type and layout the storage has the claimed bytes;
        to ask for them costs more than all the others together.
        """
        name = f"s{slot}"
        texts = [f"{name}.shape != {self._bind(claim.shape)}"]
        texts.append(f"{name}.dtype is not {self._bind(claim.dtype)}")
        if layout and self.leans_on_layout(slot, claim):
            plain = is_contiguous(claim.geometry)  # which costs half of what strides do
            strided = f"{name}.stride() != {self._bind(claim.stride)}"
            texts.append(f"not {name}.is_contiguous()" if plain else strided)
            texts.append(f"{name}.storage_offset() != {claim.offset}")
        self.comparisons.add(len(self.step_of_line))
        self._line(f"if {' or '.join(texts)}: raise {self._bind(Unlike)}")

    def _call(self, step: PlanStep) -> str:
        info = step.info
        texts: list[str] = []
        for argument, node in zip(info.arguments, step.bound, strict=True):
            leaves = node.nodes if isinstance(node, Many) else (node,)
            parts = [self._text(leaf) for leaf in leaves]
            for guard in step.guards:
                if guard.argument == argument.name:
                    place = max(guard.place, 0)
                    parts[place] = self._guarded(step, guard, parts[place])
            texts.append(f"[{', '.join(parts)}]" if isinstance(node, Many) else parts[0])
        positional, named = trimmed(step, texts)
        given = positional + [f"{name}={text}" for name, text in named]
        if info.seeded and info.generator is None:
            first = [f"g{draws(step)[0]}", self._bind(step.call)]
            return f"{self._bind(drawing)}({', '.join(first + given)})"
        call = step.precaution or quickest(step, self.plan.views)
        return f"{self._bind(call)}({', '.join(given)})"

    def _guarded(self, step: PlanStep, guard: Guard, text: str) -> str:
        """Write a look at a value; gives what to pass instead of it."""
        name, bound = self._bind(step.info.name), self._bind(guard)
        if not self.clamps:
            self._line(f"{self._bind(check_range)}({name}, {text}, {bound})")
            return text
        clamp = f"i{len(self.clamped)}"
        self.clamped.append(clamp)
        self._line(f"{clamp} = {self._bind(clamped)}({name}, {text}, {bound}, F, {step.index})")
        return clamp

    def _text(self, node: Node) -> str:
        if isinstance(node, Ref):
            return self._view(node)
        if isinstance(node, NumberValue):
            if node.dtype is not None:
                return f"{self._bind(host_scalar)}(p{node.index}, {self._bind(node.dtype)})"
            return f"p{node.index}"
        if isinstance(node, Draw):
            return f"g{node.index}"
        if isinstance(node, Many):
            return "[" + ", ".join(self._text(leaf) for leaf in node.nodes) + "]"
        return self._bind(node.value)

    def _view(self, ref: Ref) -> str:
        name = self.plan.names[ref.slot, ref.view]
        made = self.variables.setdefault(ref.slot, set())
        if ref.slot in self.plan.private:
            # a tensor of its own, because the op may resize it
            return f"{self._bind(self.plan.views[ref.view][0].over)}(s{ref.slot})"
        if name in made:
            return name
        made.add(name)
        spec = self.plan.views[ref.view][0]
        base = f"s{ref.slot}"
        if self.is_laid_over(ref.slot, spec):
            # the C function that `ViewSpec.over` would call in the end
            parts = (spec.shape, spec.stride, spec.offset)
            shape, stride, offset = (self._bind(part) for part in parts)
            strided = self._bind(torch.as_strided)
            self._line(f"{name} = {strided}({base}, {shape}, {stride}, {offset})")
        else:
            self._line(f"{name} = {self._bind(spec.over)}({base})")
        return name

    def _delete(self, step: PlanStep) -> None:
        gone = self.gone_after(step) + self.clamped
        self.clamped = []
        if gone:
            self._line("del " + ", ".join(gone))
