"""Faults put into compiled runs: an op that does something else, in whichever form it is done."""

from jgpu.broker.executor.programs.running import assembly
from jgpu.broker.executor.programs.running import compile as compiling
from jgpu.broker.executor.programs.running.callables import quickest

__all__ = ["replace_op"]


def replace_op(monkeypatch, definition, index, replaced):
    """Have a definition's compiled runs call `replaced(op)` for the op of this index."""
    step = definition.plan.steps[index]
    call = replaced(step.info.call)

    def in_python(each):
        return call if each is step else each.precaution

    def quick(each, views):
        return call if each is step else quickest(each, views)

    monkeypatch.setattr(assembly, "_in_python", in_python)
    monkeypatch.setattr(compiling, "quickest", quick)
    for key in definition._variants:
        masks = definition.masks(*key)
        definition._variants[key] = compiling.compile_plan(
            definition.plan, masks.keep, definition._restrides, wanted=masks.wanted
        )
    definition._masks.clear()  # which know the functions that were
