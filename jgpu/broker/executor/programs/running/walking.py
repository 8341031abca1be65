"""What a walk over a plan keeps in mind, whatever it writes: lines of a function or instructions.

Says what is there, what is to be compared, and what nobody needs any more. Both forms of a compiled
run ask here, so that they are the same run.
"""

from collections.abc import Sequence

from jgpu.broker.executor.programs.geometry import ViewSpec
from jgpu.broker.executor.programs.plan import PlanStep, ProgramPlan
from jgpu.wire.program import NO_SLOT

__all__ = ["PlanWalk"]


class PlanWalk:
    """One plan, for one set of kept slots."""

    def __init__(
        self, plan: ProgramPlan, keep: Sequence[bool], restrides: set[tuple[int, int]]
    ) -> None:
        self.plan = plan
        #: per slot whether it outlives the run
        self.keep = keep
        #: returns, by step and place, that lie otherwise than claimed
        self.restrides = restrides
        #: variables that exist, by slot
        self.variables: dict[int, set[str]] = {}
        #: slots that are seen otherwise than as they were made
        self._reseen = {slot for (slot, _), name in plan.names.items() if name != f"s{slot}"}
        #: claimed geometry by fresh slot
        self._claims = {
            slot: claim
            for step in plan.steps
            for slot, claim in zip(step.outs, step.claims, strict=True)
            if claim is not None
        }

    def is_laid_over(self, slot: int, spec: ViewSpec) -> bool:
        """Whether a view of a fresh slot is but other sizes and strides over its storage."""
        claim = self._claims.get(slot)
        return claim is not None and claim.dtype is spec.dtype and not (claim.bits or spec.bits)

    def leans_on_layout(self, slot: int, claim: ViewSpec) -> bool:
        """Whether anybody would see it if what fills the slot lay otherwise than claimed."""
        return bool(claim.nbytes) and (self.keep[slot] or slot in self._reseen)

    def gone_after(self, step: PlanStep) -> list[str]:
        """Variables that nobody needs after this step."""
        last = self.plan.last_use
        slots = {ref.slot for ref in step.refs}
        slots.update(slot for slot in step.outs if slot != NO_SLOT)
        return sorted(
            name
            for slot in slots
            if last[slot] == step.index and not self.keep[slot]
            for name in self.variables.get(slot, ())
        )
