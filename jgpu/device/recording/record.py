"""An op's call and its entry in the log: what its arguments hold, and what it returns at once.

Invariant: an entry names buffers, never tensors; whoever reads the log later sees what the op saw.
"""

from typing import Any, Final

import torch

from jgpu.device import current
from jgpu.device.errors import refused, use_of_lost
from jgpu.device.recording.infer import OpPlan, list_returns
from jgpu.device.recording.ops import OpInfo
from jgpu.device.sparse.base import CompositeTensor
from jgpu.device.tensor import BufferHandle, DeviceTensor, new_buffer, rebind, wrap

__all__ = ["RecordedCall", "Rewritten", "record"]


#: types of what stands in a key as it is
_WORDS: Final = frozenset({
    torch.device, torch.dtype, torch.layout, torch.memory_format, type(None), str
})  # fmt: skip


class Rewritten:
    """What is to be recorded instead: the same op or another, with other arguments."""

    __slots__ = ("args", "func")

    def __init__(self, args: tuple[Any, ...], func: Any = None) -> None:
        self.args = args
        self.func = func


class RecordedCall:
    """What the arguments of one call hold: the key, the tensors' buffers and offsets, numbers."""

    __slots__ = ("buffers", "host", "key", "offsets", "params", "tensors")

    def __init__(self, info: OpInfo) -> None:
        self.key: list[Any] = [info]
        self.tensors: list[DeviceTensor] = []
        self.buffers: list[BufferHandle] = []
        self.offsets: list[int] = []
        self.params: list[Any] = []
        self.host = False

    def add(self, value: Any, lift: int) -> None:
        """One argument that is no common case of `dispatch`'s loop."""
        kind = type(value)
        key = self.key
        if kind is DeviceTensor:
            key.append(value._g)
            self.tensors.append(value)
            self.buffers.append(value._b)
            self.offsets.append(value._o)
        elif kind in _WORDS:
            key.append(value)
        elif kind is list or kind is tuple:
            key.append(len(value))
            inner = 1 if lift == 2 else 0
            for item in value:
                self.add(item, inner)
        elif lift and kind in (float, int, complex):
            key.append(kind)
            self.params.append(value)
        elif kind is float:
            key.append(value.hex())
        elif kind is bool or kind is complex:
            key.append(kind)
            key.append(repr(value))
        elif isinstance(value, DeviceTensor):
            raise TypeError("A subclass of the device's tensor reached the device.")
        elif isinstance(value, torch.Tensor):
            self._add_host(value)
        elif isinstance(value, torch._C.Generator):
            key.append(current.session.generators.index_of(value))
        else:
            key.append(value)

    def _add_host(self, value: torch.Tensor) -> None:
        if isinstance(value, CompositeTensor):
            raise refused("this op on a sparse tensor", "convert with .to_dense() first")
        self.host = True
        self.key.append(value.dtype)
        if value.dim() == 0:
            number = value.item()
            self.key.append(type(number))
            self.params.append(number)


def record(plan: OpPlan, call: RecordedCall) -> Any:
    """Append the op to the log and make what it returns."""
    session = current.session
    graveyard, poisoned = session.buffers.graveyard, session.buffers.poisoned
    for buffer in call.buffers:
        if buffer.graveyard is not graveyard or buffer.id in poisoned:
            raise use_of_lost(session, buffer)
    geometry = plan.single
    if geometry is not None:
        made = new_buffer(geometry.nbytes, graveyard)
        result = wrap(made, geometry)
        session.append(plan, call.buffers, call.offsets, (made,), call.params)
        return result
    if plan.writes_first:
        session.append(plan, call.buffers, call.offsets, (), call.params)
        return call.tensors[0]
    if plan.outs is None:
        return _run_and_wait(plan, call)
    return _record_many(plan, call)


def _record_many(plan: OpPlan, call: RecordedCall) -> Any:
    session = current.session
    flat: list[Any] = []
    outs: list[BufferHandle] = []
    grown = dict(plan.grown)
    new: dict[int, BufferHandle] = {}
    for out in plan.outs or ():
        if isinstance(out, int):
            flat.append(call.tensors[out])
            if out not in grown:
                continue
        elif out is None:
            flat.append(None)
            continue
        geometry = grown[out] if isinstance(out, int) else out
        made = new_buffer(geometry.nbytes, session.buffers.graveyard)
        outs.append(made)
        if isinstance(out, int):
            new[out] = made
        else:
            flat.append(wrap(made, geometry))
    session.append(plan, call.buffers, call.offsets, tuple(outs), call.params)
    for index, made in new.items():
        rebind(call.tensors[index], made, grown[index])
    return _shape_returns(plan, flat)


def _shape_returns(plan: OpPlan, flat: list[Any]) -> Any:
    groups = plan.returns_list
    if groups is None:
        return flat[0] if flat else None
    kinds = [str(ret.type) for ret in plan.info.func._schema.returns]
    if kinds == ["List[Tensor]"]:
        return flat
    shaped: list[Any] = []
    at = 0
    for group in groups:
        if group < 0:
            shaped.append(flat[at])
            at += 1
        else:
            shaped.append(flat[at : at + group])
            at += group
    for place, value in plan.plain:
        shaped.insert(place, value)
    return tuple(shaped) if shaped else None


def _run_and_wait(plan: OpPlan, call: RecordedCall) -> Any:
    """Flush, run the one op, and make its outputs as the device says they are."""
    reports = current.session.run_alone(plan, call.buffers, call.offsets, call.params)
    flat = [None if geometry is None else wrap(buffer, geometry) for buffer, geometry in reports]
    plan.returns_list = plan.returns_list or list_returns(plan.info, len(flat))
    return _shape_returns(plan, flat)
