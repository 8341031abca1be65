"""Writing into memory that is read at the same time, or that several elements share.

Many kernels refuse that, by different rules: some refuse the same tensor, some only a partial
overlap. The overlap of two tensors is computed as in torch. Whether the op accepts it is tried on
the host's kernel, with tensors that share memory in the same way, once for each way of sharing.

Does not cover tensors too large to be tried, and ops on lists: their errors come later.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final

import torch

from jgpu.device.geometry import InternedGeometry, extent, is_dense
from jgpu.device.likenative import trying, warned
from jgpu.device.recording.infer import OpPlan
from jgpu.device.recording.ops import OpInfo
from jgpu.device.tensor import BufferHandle, DeviceTensor

__all__ = ["check", "check_itself"]

#: elements up to which an op is tried on the host
_BRIEF: Final = 1 << 20
_ALIGNED: Final = 16
_UNSUPPORTED: Final = "unsupported operation: "
_EXPANDED: Final = "on expanded tensors is deprecated"

#: what two tensors have in common: all, some, or nothing that torch would look for
_FULL, _PARTIAL, _NOTHING = range(3)


def check(
    plan: OpPlan, args: tuple[Any, ...], kwargs: dict[str, Any], tensors: Sequence[DeviceTensor]
) -> None:
    """Raise in torch's words where the op does not take its arguments together."""
    buffers = {tensor._b for tensor in tensors}
    if len(buffers) == len(tensors) or plan.info.name.startswith("aten::_foreach_"):
        return
    ways = tuple(
        _common(tensors[k], other)
        for k in plan.written()
        for j, other in enumerate(tensors)
        if j != k
    )
    if ways not in plan.overlaps and set(ways) != {_NOTHING}:
        with warned.collected():
            _try(plan.info, args, kwargs, tensors)
    plan.overlaps.add(ways)


def check_itself(
    plan: OpPlan, args: tuple[Any, ...], kwargs: dict[str, Any], tensors: Sequence[DeviceTensor]
) -> None:
    """The same of a tensor that is written and shows some of its memory more than once.

    Some kernels warn of it instead: so does each call of the plan.
    """
    if not any(_is_repeated(tensors[k]._g) for k in plan.written()):
        return
    with warned.collected() as found:
        _try(plan.info, args, kwargs, tensors)
    said = tuple(each for each in found if _EXPANDED in each[1] and each not in plan.warns)
    if said:
        plan.warns += said
        plan.forget_ways()


def _is_repeated(geometry: InternedGeometry) -> bool:
    """As far as torch looks: whether a step is 0."""
    steps = zip(geometry.shape, geometry.stride, strict=True)
    return any(size > 1 and step == 0 for size, step in steps)


def _common(one: DeviceTensor, other: DeviceTensor) -> int:
    if one is other:
        return _FULL
    if one._b is not other._b or not (one._g.numel and other._g.numel):
        return _NOTHING
    if not (is_dense(one._g) and is_dense(other._g)):
        return _NOTHING
    (begin, end), (start, stop) = _span(one), _span(other)
    if (begin, end) == (start, stop):
        return _FULL if one._g.stride == other._g.stride else _PARTIAL
    return _PARTIAL if begin < stop and start < end else _NOTHING


def _span(tensor: DeviceTensor) -> tuple[int, int]:
    """The bytes of its buffer that it shows: the first, and the one after the last."""
    geometry = tensor._g
    begin = tensor._o * geometry.itemsize
    return begin, begin + extent(geometry.shape, geometry.stride) * geometry.itemsize


def _try(
    info: OpInfo, args: tuple[Any, ...], kwargs: dict[str, Any], tensors: Sequence[DeviceTensor]
) -> None:
    if any(each._g.bits or each._g.numel > _BRIEF for each in tensors):
        return
    spans: dict[BufferHandle, tuple[int, int]] = {}
    for each in tensors:
        begin, end = _span(each)
        low, high = spans.get(each._b, (begin, end))
        spans[each._b] = min(begin, low), max(end, high)
    if sum(end - begin for begin, end in spans.values()) > _BRIEF * _ALIGNED:
        return
    state = torch.default_generator.get_state() if info.seeded else None
    try:
        trying.call(info, args, kwargs, _twins(spans))
    except (RuntimeError, IndexError, ValueError, TypeError) as error:
        if str(error).startswith(_UNSUPPORTED):
            raise
    finally:
        if state is not None:
            torch.default_generator.set_state(state)


def _twins(spans: dict[BufferHandle, tuple[int, int]]) -> Callable[[DeviceTensor], torch.Tensor]:
    """Host tensors that share memory as the device's do, where these bytes of buffers are shown."""
    begins = {buffer: begin // _ALIGNED * _ALIGNED for buffer, (begin, _) in spans.items()}
    memory = {
        buffer: torch.zeros(end - begins[buffer], dtype=torch.uint8, device="cpu").untyped_storage()
        for buffer, (_, end) in spans.items()
    }

    def twin(tensor: DeviceTensor) -> torch.Tensor:
        geometry = tensor._g
        offset = tensor._o - begins[tensor._b] // geometry.itemsize
        empty = torch.empty(0, dtype=geometry.dtype, device="cpu")
        return empty.set_(memory[tensor._b], offset, geometry.shape, geometry.stride)

    return twin
