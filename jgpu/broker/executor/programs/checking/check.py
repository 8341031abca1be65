"""From a decoded program to a plan: every op, argument, geometry and contract is looked at once.

What is checked here holds at every run, whatever the session: ops are allowed, arguments are of
the schema's kinds, views lie within the slots they look at, internal ops get what they trust in.
What depends on a session's buffers becomes a number to compare at each run (`Plan.least_bytes`).

Invariant: a step reaches the plan only after all its checks.
"""

from dataclasses import dataclass, replace
from typing import Any

import torch

from jgpu.broker.executor.programs import contracts
from jgpu.broker.executor.programs.checking.arguments import (
    Bound,
    Const,
    Many,
    Node,
    Ref,
    bind,
    refs_of,
)
from jgpu.broker.executor.programs.checking.guards import Guard, check_range
from jgpu.broker.executor.programs.checking.inference import Inferred, Returned, infer
from jgpu.broker.executor.programs.checking.ops import OpSchema, resolve
from jgpu.broker.executor.programs.checking.trusted import Look, guards_of
from jgpu.broker.executor.programs.checking.waiting import waits_for_its_stream
from jgpu.broker.executor.programs.flags import check_flags
from jgpu.broker.executor.programs.geometry import ViewSpec, geometry_of, intern, is_dense
from jgpu.broker.executor.programs.kinds import KINDS
from jgpu.broker.executor.programs.plan import PlanStep, ProgramPlan
from jgpu.broker.executor.programs.precautions import Precaution, precaution_of
from jgpu.broker.executor.programs.precautions.sizes import size_rule
from jgpu.errors import ProgramError
from jgpu.wire.program import NO_SLOT, Geometry, Op, Out, Program

__all__ = ["check_guards", "check_op", "check_program", "look_at"]

#: Ops that leave what they make uninitialised.
_UNINITIALISED = (
    "empty",
    "empty_like",
    "empty_strided",
    "empty_permuted",
    "new_empty",
    "new_empty_strided",
)
#: In-place ops that write every element of `self` and read none.
_OVERWRITING = (
    "fill_",
    "zero_",
    "copy_",
    "normal_",
    "uniform_",
    "bernoulli_",
    "random_",
    "exponential_",
    "log_normal_",
    "cauchy_",
    "geometric_",
)


@dataclass(slots=True)
class _Slot:
    """What is known of a slot while the program is walked."""

    #: bytes of its storage; for an input, the least it must have
    nbytes: int
    #: an input, unless a step has resized it: grows with what views need
    open: bool
    #: the slot whose storage it shares, or itself
    root: int
    #: geometry it was made with
    claim: ViewSpec | None = None


def check_program(program: Program, kind: str, device: torch.device) -> ProgramPlan:
    """The plan of a program whose form is right; raises `ProgramError`."""
    check_flags(program.flags)
    return _Walk(program, kind, device).plan()


def check_op(
    op: Op, info: OpSchema, bound: Bound, tensors: list[tuple[Geometry, int]]
) -> Inferred | None:
    """Infer an op's returns and hold it to its contract; raises `ProgramError`."""
    contracts.check(info, bound, [geometry for geometry, _ in tensors])
    inferred = infer(info, bound, tensors)
    if inferred is None and info.internal and not contracts.works_without_meta(info.base):
        raise ProgramError(f"{op.name} may not run here: nothing foretells what it returns.")
    return inferred


def look_at(info: OpSchema, bound: Bound, geometries: list[Geometry]) -> Look:
    """The call as rules see it before it runs."""
    left = iter(geometries)

    def seen(node: Node) -> Any:
        if isinstance(node, Ref):
            return next(left)
        if isinstance(node, Many):
            return [seen(leaf) for leaf in node.nodes]
        if isinstance(node, Const):
            value = node.value
            return geometry_of(value) if isinstance(value, torch.Tensor) else value
        return None

    return Look({a.name: seen(n) for a, n in zip(info.arguments, bound, strict=True)})


def check_guards(info: OpSchema, bound: Bound, look: Look, kind: str) -> tuple[Guard, ...]:
    """The op's guards; those over host tensors are settled at once."""
    nodes = dict(zip(look.names, bound, strict=True))
    guards = []
    for guard in guards_of(info.base, look, kind):
        node = nodes[guard.argument]
        if isinstance(node, Many) and guard.place >= 0:
            node = node.nodes[guard.place]
        if isinstance(node, Ref):
            guards.append(guard)
        elif isinstance(node, Const) and isinstance(node.value, torch.Tensor):
            try:
                check_range(info.name, node.value, guard)
            except (IndexError, RuntimeError) as error:
                raise ProgramError(str(error)) from None
    return tuple(guards)


def _waits(precaution: Precaution | None) -> bool:
    return precaution is not None and precaution.waits


class _Walk:
    """One pass over a program's ops, slot by slot."""

    def __init__(self, program: Program, kind: str, device: torch.device) -> None:
        self.program = program
        self.kind = kind
        self.device = device
        self.views = [
            (intern(program.geometries[view.geometry]), view.offset_param) for view in program.views
        ]
        self.slots = [_Slot(0, True, k, None) for k in range(program.inputs)]
        self.least = [0] * program.inputs
        self.resized: set[int] = set()
        self.names: dict[tuple[int, int], str] = {}
        self.steps: list[PlanStep] = []

    def plan(self) -> ProgramPlan:
        """Walk all ops."""
        for index, op in enumerate(self.program.ops):
            try:
                self.steps.append(self._step(index, op))
            except ProgramError as error:
                error.op, error.name = index, op.name
                raise
        self._elide_zeroing()
        inputs = self.program.inputs
        private = frozenset(k for k, slot in enumerate(self.slots) if slot.root in self.resized)
        if any(slot in private and self.views[view][1] >= 0 for slot, view in self.names):
            raise ProgramError("A slot that is resized has no view whose offset is a parameter.")
        resized = tuple(sorted(k for k in self.resized if k < inputs))
        return ProgramPlan(
            inputs=inputs,
            fresh=len(self.slots) - inputs,
            params=self.program.params,
            flags=self.program.flags,
            steps=tuple(self.steps),
            views=tuple(self.views),
            least_bytes=tuple(self.least),
            slot_bytes=tuple(
                slot.nbytes if slot.root == inputs + k else 0
                for k, slot in enumerate(self.slots[inputs:])
            ),
            resized=resized,
            resized_bytes=tuple(self.slots[k].nbytes for k in resized),
            private=private,
            names=self._name(private),
        )

    def _step(self, index: int, op: Op) -> PlanStep:
        info = resolve(op.name, self.kind)
        contracts.require_contract(info)
        bound = bind(op, info, self.device)
        refs = tuple(refs_of(bound))
        for ref in refs:
            self._check_view(op, ref)
        tensors = [(self._geometry(ref), self.slots[ref.slot].nbytes) for ref in refs]
        inferred = check_op(op, info, bound, tensors)
        look = look_at(info, bound, [geometry for geometry, _ in tensors])
        guards = check_guards(info, bound, look, self.kind)
        grows: tuple[tuple[int, int], ...] = ()
        if inferred is not None:
            self._check_returns(op, inferred)
            grows = self._note_changes(op, info, refs, inferred)
        elif info.resizes:  # nobody says how far
            self.resized.update(self.slots[ref.slot].root for ref in refs if ref.written)
        # an index is tagged for the sake of masks, of which no meta kernel says anything
        dynamic = inferred is None or (info.dynamic and info.base != "index")
        precaution = precaution_of(info, look, self.kind)
        aliases = tuple(
            self._make(op, out, inferred.returns[k] if inferred else None, refs)
            for k, out in enumerate(op.outs)
        )
        return PlanStep(
            index=index,
            info=info,
            bound=bound,
            refs=refs,
            outs=tuple(out.slot for out in op.outs),
            claims=tuple(
                None if out.slot == NO_SLOT else self.slots[out.slot].claim for out in op.outs
            ),
            aliases=aliases,
            dynamic=bool(op.outs) and dynamic,
            zeroed=info.base in _UNINITIALISED and not self.program.flags.deterministic,
            grows=grows,
            guards=guards,
            precaution=precaution,
            size=size_rule(info.base) if dynamic else None,
            waits=KINDS[self.kind].runs_ahead
            and (dynamic or _waits(precaution) or self._reads(info, refs)),
        )

    def _reads(self, info: OpSchema, refs: tuple[Ref, ...]) -> bool:
        """Whether the op looks at data on the host."""
        dtypes = (self._geometry(ref).dtype for ref in refs)
        return waits_for_its_stream(info.name, info.overload.tags, dtypes)

    def _geometry(self, ref: Ref) -> Geometry:
        return self.views[ref.view][0].geometry

    def _check_view(self, op: Op, ref: Ref) -> None:
        spec, offset_param = self.views[ref.view]
        root = self.slots[self.slots[ref.slot].root]
        if offset_param >= 0:
            if ref.slot >= self.program.inputs or not root.open:
                raise ProgramError(f"{op.name}: only an input's offset may be a run parameter.")
        elif root.open:
            root.nbytes = max(root.nbytes, spec.nbytes)
            self.least[root.root] = root.nbytes
        elif spec.nbytes > root.nbytes:
            raise ProgramError(
                f"{op.name} looks at {spec.nbytes} bytes of slot {ref.slot}, which has "
                f"{root.nbytes}."
            )
        self.names.setdefault((ref.slot, ref.view), "")

    def _note_changes(
        self, op: Op, info: OpSchema, refs: tuple[Ref, ...], inferred: Inferred
    ) -> tuple[tuple[int, int], ...]:
        """An argument that the op resizes has the storage that its new geometry needs.

        Gives the slots that the op makes grow, with the bytes they then have. In deterministic mode
        `resize_` fills what is new by itself, with what torch says.
        """
        grows = []
        fills = self.program.flags.deterministic and info.base.startswith("resize")
        for k, returned in inferred.changed:
            root = self.slots[self.slots[refs[k].slot].root]
            if not refs[k].written or not info.resizes:
                raise ProgramError(f"{op.name} changes the geometry of an argument.")
            if self.views[refs[k].view][1] >= 0:
                raise ProgramError(f"{op.name} resizes a tensor at an offset given at run time.")
            root.nbytes = max(root.nbytes, intern(returned.geometry).nbytes)
            root.open = False
            self.resized.add(root.root)
            if not fills:
                grows.append((refs[k].slot, root.nbytes))
        return tuple(grows)

    def _check_returns(self, op: Op, inferred: Inferred) -> None:
        count = len(inferred.returns)
        if len(op.outs) != count:
            raise ProgramError(f"{op.name} returns {count} tensors, not {len(op.outs)}.")
        for k, (out, returned) in enumerate(zip(op.outs, inferred.returns, strict=True)):
            if returned is None and out.slot != NO_SLOT:
                raise ProgramError(f"{op.name} returns nothing at place {k}.")

    def _make(self, op: Op, out: Out, returned: Returned | None, refs: tuple[Ref, ...]) -> bool:
        """Note the slot that a return fills; says whether it shares an older storage."""
        if out.slot == NO_SLOT:
            return False
        if out.geometry < 0:
            self.slots.append(_Slot(0, False, out.slot, None))
            return False
        claim = intern(self.program.geometries[out.geometry])
        alias = returned.alias if returned is not None else -1
        if alias < 0:
            self.slots.append(_Slot(claim.nbytes, False, out.slot, claim))
            return False
        if returned is None or returned.geometry != claim.geometry:
            raise ProgramError(f"{op.name} returns a view of its argument, of another geometry.")
        root = self.slots[refs[alias].slot].root
        self.slots.append(_Slot(0, False, root, claim))
        return True

    def _name(self, private: frozenset[int]) -> dict[tuple[int, int], str]:
        """Variable names: `s<slot>` where a view is what the op returned, else `v<n>`."""
        names = {}
        for number, (slot, view) in enumerate(self.names):
            spec, offset_param = self.views[view]
            whole = (
                slot >= self.program.inputs
                and slot not in private
                and offset_param < 0
                and self.slots[slot].claim is spec
            )
            names[slot, view] = f"s{slot}" if whole else f"v{number}"
        return names

    def _elide_zeroing(self) -> None:
        """Leave a slot as it came where the next op that touches it overwrites all of it."""
        for step in self.steps:
            if not step.zeroed or step.outs == (NO_SLOT,):
                continue
            slot = step.outs[0]
            later = (s for s in self.steps[step.index + 1 :] if any(r.slot == slot for r in s.refs))
            following = next(later, None)
            if following is not None and self._overwrites(following, slot):
                self.steps[step.index] = replace(step, zeroed=False)
                self.steps[following.index] = replace(following, overwrites=slot)

    def _overwrites(self, step: PlanStep, slot: int) -> bool:
        first = step.refs[0]
        spec = self.views[first.view][0]
        whole = spec is self.slots[slot].claim and is_dense(spec.geometry)
        alone = sum(ref.slot == slot for ref in step.refs) == 1
        return (
            step.info.base in _OVERWRITING
            and first.slot == slot
            and alone
            and whole
            and step.overwrites == NO_SLOT
        )
