"""What a program is given at each run, checked: counts, bytes, offsets, kinds of the parameters.

Everything else about a program was checked once, when it was defined. Where the accelerator is,
it says whether all fits, and makes the tensors that the ops see; why something does not fit is said
here alone, and the plain forms are what the accelerator's are held to.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import torch

from jgpu.accelerator import loading
from jgpu.broker.executor.programs.buffers import Buffer, views_of, views_over
from jgpu.broker.executor.programs.plan import ProgramPlan
from jgpu.broker.executor.programs.running.callables import below_autograd
from jgpu.errors import ProgramError
from jgpu.wire.messages import Number

if TYPE_CHECKING:
    from jgpu.broker.executor.programs.geometry import ViewSpec

__all__ = ["InputCheck"]

_TYPES: Final = {"int": int, "float": float, "bool": bool, "complex": tuple}
#: integers that torch takes anywhere, unsigned ones among them, are from the one to below the other
_LEAST: Final = -(1 << 63)
_PAST: Final = 1 << 64
_library: Final = loading.load()
_new_inputs: Final = getattr(_library, "new_inputs", None)


class InputCheck:
    """One program's."""

    __slots__ = ("_count", "_ints", "_native", "_plan", "_types", "lifted", "pairs", "straight")

    def __init__(self, plan: ProgramPlan) -> None:
        self._plan = plan
        self._count = len(plan.params)
        #: what parameters are, and which of them have a range to keep
        self._types = [_TYPES[kind] for kind in plan.params]
        self._ints = [k for k, kind in enumerate(plan.params) if kind == "int"]
        #: some of them are complex, which come as pairs
        self.pairs = "complex" in plan.params
        #: of input views that are made anew at each run, for their offset is given then: slot,
        #: parameter, bytes of storage that are touched at offset 0, and how many more an element
        self.lifted = [
            (slot, param, spec.bytes_at(0), spec.dtype.itemsize if spec.nbytes else 0)
            for slot, view, _ in plan.taken
            for spec, param in [plan.views[view]]
            if param >= 0
        ]

        #: slot and geometry of each view that a run takes, where none is made anew at each run
        self.straight: tuple[tuple[int, ViewSpec], ...] | None = None
        if not (self.lifted or plan.bases):
            self.straight = tuple((slot, plan.views[view][0]) for slot, view, _ in plan.taken)
        self._native = None if _new_inputs is None else _new_inputs(self._told())

    def _told(self) -> tuple[Any, ...]:
        """What the accelerator is told of the program."""
        views = [(slot, *self._plan.views[view]) for slot, view, _ in self._plan.taken]
        shown = tuple(
            (slot, spec, param, None if spec.bits else spec.dtype, spec.shape, spec.stride)
            for slot, spec, param in views
        )
        return self._plan.least_bytes, tuple(self._types), shown, tuple(self.lifted)

    def fitting(
        self, table: Mapping[int, Buffer], numbers: Sequence[int], params: Sequence[Number]
    ) -> Sequence[Buffer] | None:
        """The buffers of these numbers, if they are there, hold what they should, and all fits."""
        if self._native is not None:
            fit: list[Buffer] | None = _library.fitting(self._native, table, numbers, params)
            return fit
        return self.fitting_in_python(table, numbers, params)

    def fitting_in_python(
        self, table: Mapping[int, Buffer], numbers: Sequence[int], params: Sequence[Number]
    ) -> Sequence[Buffer] | None:
        """`fitting`; the plain form."""
        try:
            buffers = [*map(table.__getitem__, numbers)]
            return buffers if self.check(buffers, params) else None
        except (KeyError, ProgramError):
            return None

    def seen(self, buffers: Sequence[Buffer], params: Sequence[Number]) -> list[torch.Tensor]:
        """The tensors that the ops see of buffers and parameters that were looked at.

        Of a program whose ops ask for no storage as a whole (`ProgramPlan.bases`).
        """
        if self._native is not None:
            tensors: list[torch.Tensor] = _library.seen_of(self._native, buffers, params)
            return tensors
        return self.seen_in_python(buffers, params)

    def seen_in_python(
        self, buffers: Sequence[Buffer], params: Sequence[Number]
    ) -> list[torch.Tensor]:
        """`seen`; the plain form."""
        plan = self._plan
        if self.straight is not None:
            return views_of(buffers, self.straight)
        with below_autograd():
            return [*views_over(buffers, plan.taken, plan.views, params).values()]

    def numbers(self, params: Sequence[Number]) -> list[Any]:
        """The parameters as Python has them."""
        return [complex(*v) if isinstance(v, tuple) else v for v in params]

    def check(self, buffers: Sequence[Buffer], params: Sequence[Number]) -> bool:
        """Raise `ProgramError` unless these inputs fit: counts, bytes, offsets, kinds.

        Returns whether all hold what they should: none is poisoned.
        """
        plan = self._plan
        if len(buffers) != plan.inputs or len(params) != self._count:
            raise ProgramError(
                f"The program takes {plan.inputs} buffers and {len(plan.params)} parameters, "
                f"not {len(buffers)} and {len(params)}."
            )
        sound = True
        for buffer, least in zip(buffers, plan.least_bytes):  # noqa: B905 - of one length
            if buffer.poison is not None:
                sound = False
            elif buffer.nbytes < least:
                raise ProgramError(
                    f"Input {buffers.index(buffer)} of the program needs {least} bytes, "
                    f"buffer {buffer.id} has {buffer.nbytes}."
                )
        if params:
            self._check_numbers(params)
        for slot, param, least, itemsize in self.lifted:
            offset, buffer = params[param], buffers[slot]
            if buffer.poison is None and (
                offset < 0 or least + offset * itemsize > buffer.nbytes  # type: ignore[operator]
            ):
                raise ProgramError(f"Offset {offset} is outside of buffer {buffer.id}.")
        return sound

    def _check_numbers(self, params: Sequence[Number]) -> None:
        if [*map(type, params)] != self._types:
            for value, kind in zip(params, self._plan.params, strict=True):
                _check_kind(value, kind)
        for k in self._ints:
            if not _LEAST <= params[k] < _PAST:  # type: ignore[operator]
                raise _misfit(params[k], "int")


def _check_kind(value: Number, kind: str) -> None:
    if type(value) is not _TYPES[kind]:
        raise _misfit(value, kind)


def _misfit(value: Number, kind: str) -> ProgramError:
    return ProgramError(f"Parameter {value!r} is not of kind {kind}.")
