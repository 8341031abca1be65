"""What a program is given at each run, checked: counts, bytes, offsets, kinds of the parameters.

Everything else about a program was checked once, when it was defined.
"""

from collections.abc import Sequence
from typing import Final

from jgpu.broker.executor.programs.buffers import Buffer
from jgpu.broker.executor.programs.plan import ProgramPlan
from jgpu.errors import ProgramError
from jgpu.wire.messages import Number

__all__ = ["InputCheck"]

_TYPES: Final = {"int": int, "float": float, "bool": bool, "complex": tuple}


class InputCheck:
    """One program's."""

    __slots__ = ("_lifted", "_plan", "_ranged", "_types")

    def __init__(self, plan: ProgramPlan) -> None:
        self._plan = plan
        #: what parameters are, and whether some have a range to keep
        self._types = [_TYPES[kind] for kind in plan.params]
        self._ranged = "int" in plan.params
        #: (slot, view, parameter) of input views whose offset is given at run time
        self._lifted = [
            (slot, view, plan.views[view][1])
            for slot, view, _ in plan.taken
            if plan.views[view][1] >= 0
        ]

    def check(self, buffers: Sequence[Buffer], params: Sequence[Number]) -> None:
        """Raise `ProgramError` unless these inputs fit: counts, bytes, offsets, kinds."""
        plan = self._plan
        if len(buffers) != plan.inputs or len(params) != len(plan.params):
            raise ProgramError(
                f"The program takes {plan.inputs} buffers and {len(plan.params)} parameters, "
                f"not {len(buffers)} and {len(params)}."
            )
        for buffer, least in zip(buffers, plan.least_bytes, strict=True):
            if buffer.nbytes < least and buffer.poison is None:
                raise ProgramError(
                    f"Input {buffers.index(buffer)} of the program needs {least} bytes, "
                    f"buffer {buffer.id} has {buffer.nbytes}."
                )
        if [type(value) for value in params] != self._types or self._ranged:
            for value, kind in zip(params, plan.params, strict=True):
                _check_value(value, kind)
        for slot, view, param in self._lifted:
            spec = plan.views[view][0]
            if buffers[slot].poison is None:
                offset = int(params[param])  # type: ignore[arg-type]
                if offset < 0 or spec.bytes_at(offset) > buffers[slot].nbytes:
                    raise ProgramError(f"Offset {offset} is outside of buffer {buffers[slot].id}.")


def _check_value(value: Number, kind: str) -> None:
    fits = type(value) is _TYPES[kind]
    if fits and kind == "int":
        fits = -(1 << 63) <= int(value) < 1 << 63  # type: ignore[arg-type]
    if not fits:
        raise ProgramError(f"Parameter {value!r} is not of kind {kind}.")
