"""What follows from a wrong result, op by op: all that was computed of it, and all it was put into.

By the plan alone, after the ops ran. A slot that shares another one's storage is spoiled with it.
"""

from collections.abc import Mapping

from jgpu.broker.executor.programs.buffers import Failure
from jgpu.broker.executor.programs.plan import PlanStep, ProgramPlan
from jgpu.wire.program import NO_SLOT

__all__ = ["follow"]


def follow(
    plan: ProgramPlan, spoiled: dict[int, Failure], failed: Mapping[int, Failure], done: int
) -> list[Failure]:
    """Add the slots that the first `done` ops spoiled to `spoiled`, each with its cause.

    `failed`: ops whose own result is wrong. Returns those failures that are no consequence of
    another.
    """
    began: list[Failure] = []
    #: slots over one storage, by slot
    shared: dict[int, set[int]] = {}
    for step in plan.steps[:done]:
        _share(step, shared)
        given = (each for ref in step.refs for each in shared.get(ref.slot, {ref.slot}))
        cause = next((spoiled[slot] for slot in given if slot in spoiled), None)
        if cause is None:
            cause = failed.get(step.index)
            if cause is None:
                continue
            began.append(cause)
        touched = [slot for slot in step.outs if slot != NO_SLOT]
        touched += [ref.slot for ref in step.refs if ref.written]
        for slot in touched:
            for each in shared.get(slot, {slot}):
                spoiled.setdefault(each, cause)
    return began


def _share(step: PlanStep, shared: dict[int, set[int]]) -> None:
    """An output that may lie over any of what its op was given."""
    if not any(step.aliases):
        return
    slots = {ref.slot for ref in step.refs}
    slots.update(out for out, alias in zip(step.outs, step.aliases, strict=True) if alias)
    together = set().union(*(shared.get(slot, {slot}) for slot in slots))
    for slot in together:
        shared[slot] = together
