"""Split a call on a long list of tensors into calls on parts of the list.

Ops of the families `_foreach_*`, `_fused_*` and `_amp_foreach_*` handle each index of their lists
independently, and `cat` and `stack` copy bytes, so the parts compute the bits of the whole. A list
op of torch that would leave its fused kernel because of one tensor leaves it for all of them; such
a call is recorded tensor by tensor.

Short parts bound the time that the executor needs to check a program, and a list that grows at
each step does not create a new long program each time.
"""

from collections.abc import Iterator
from typing import Any, Final

import torch

from jgpu.device import current
from jgpu.device.geometry import InternedGeometry, contiguous_stride, intern, is_dense
from jgpu.device.likenative import listed, outs
from jgpu.device.recording.infer import plan_for
from jgpu.device.recording.ops import OpInfo
from jgpu.device.recording.record import RecordedCall
from jgpu.device.tensor import DeviceTensor, device

__all__ = ["LONG", "in_parts"]

#: Most tensors and numbers of one recorded op whose lists can be split.
LONG: Final = 2048
#: Most tensors, results and numbers of one part. Both sides look at each of them when they see
#: such an op for the first time, and at none of those of the parts that are alike.
PART: Final = 512

#: More than the arguments of such an op that are not lists.
_SINGLE: Final = 64
_PER_INDEX: Final = ("aten::_foreach_", "aten::_fused_", "aten::_amp_foreach_")
_LISTS: Final = ("List[Tensor]", "List[number]")
_JOINS: Final = frozenset({"aten::cat", "aten::stack", "aten::_stack"})
_JOINS_INTO: Final = frozenset({"aten::cat.out", "aten::stack.out"})


def in_parts(
    call: RecordedCall, info: OpInfo, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Return what the op returns; NotImplemented if it is short, or its lists cannot be split."""
    if len(call.tensors) + len(call.params) <= LONG:
        return NotImplemented
    if info.name in _JOINS:
        return _join(info, *args, **kwargs)
    if info.name in _JOINS_INTO:
        return outs.into_outs(info, args, kwargs)
    if info.name.startswith(_PER_INDEX):
        return _by_index(info, args, kwargs)
    return NotImplemented


# -- ops that handle each index independently --------------------------------------------------


def _by_index(info: OpInfo, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    returned = [str(each.type) for each in info.func._schema.returns]
    lists = list(_lists_of(info, args, kwargs))
    count = len(lists[0]) if lists else 0
    if not count or any(kind != "List[Tensor]" for kind in returned):
        return NotImplemented
    if any(len(each) not in (0, count) for each in lists):
        return NotImplemented  # an error, which the whole call raises
    size = (PART - _SINGLE) // (len(lists) + len(returned))
    if count <= size:
        return NotImplemented
    if info.name.startswith("aten::_foreach_") and not _shares_kernel(lists, (args, kwargs)):
        return listed.one_by_one(info, args, kwargs)
    names = {id(each) for each in lists}

    def part(value: Any, at: int) -> Any:
        return value[at : at + size] if id(value) in names else value

    made = [
        info.func(
            *(part(value, at) for value in args),
            **{name: part(value, at) for name, value in kwargs.items()},
        )
        for at in range(0, count, size)
    ]
    return _merge(made, len(returned))


def _lists_of(
    info: OpInfo, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Iterator[list[Any] | tuple[Any, ...]]:
    """The arguments that have an item for each index."""
    for argument, value in zip(info.arguments, args, strict=False):
        if str(argument.type) in _LISTS and isinstance(value, list | tuple):
            yield value
    for name, value in kwargs.items():
        kind = str(info.arguments[info.positions[name]].type)
        if kind in _LISTS and isinstance(value, list | tuple):
            yield value


def _merge(made: list[Any], returned: int) -> Any:
    if made[0] is None:
        return None
    if returned == 1:
        return [tensor for part in made for tensor in part]
    return tuple([tensor for part in made for tensor in part[k]] for k in range(returned))


def _shares_kernel(lists: list[Any], given: Any) -> bool:
    """Whether torch handles all indices alike: `can_use_fast_route` of its `ForeachUtils.h`."""
    tensors = [each for each in lists if each and isinstance(each[0], DeviceTensor)]
    if not all(type(tensor) is DeviceTensor for each in tensors for tensor in each):
        return False
    geometries = {tensor._g for each in tensors for tensor in each}
    dtypes = {geometry.dtype for geometry in geometries}
    if len(dtypes) > 1 or not all(map(is_dense, geometries)):
        return False
    first, *others = tensors
    for other in others:
        for one, two in zip(first, other, strict=True):
            if one._g is not two._g and (
                one._g.shape != two._g.shape or one._g.stride != two._g.stride
            ):
                return False
    numbers = [each for each in lists if each and not isinstance(each[0], torch.Tensor)]
    kinds = {type(number) for each in numbers for number in each}
    return len(kinds) < 2 or all(dtype.is_floating_point for dtype in dtypes)


# -- ops that copy their tensors into one -------------------------------------------------------


def _join(info: OpInfo, tensors: list[Any], dim: int = 0) -> Any:
    """`cat` or `stack`: join part by part, and copy each into its place in the result."""
    stacks = info.name != "aten::cat"
    if not all(type(tensor) is DeviceTensor for tensor in tensors):
        return NotImplemented
    whole = _joined_rows(tensors, dim, stacks) or _joined(info, tensors, dim)
    rank = len(whole.shape)
    dim = dim + rank if dim < 0 else dim
    if not stacks:
        # `cat` ignores an empty vector whatever the other tensors are
        tensors = [t for t in tensors if t._g.shape != (0,)] if rank != 1 else tensors
        tensors = [t if t._g.dtype is whole.dtype else t.to(whole.dtype) for t in tensors]
    out = torch.empty_strided(whole.shape, whole.stride, dtype=whole.dtype, device=device())
    start, size = 0, PART // 2
    for at in range(0, len(tensors), size):
        part = tensors[at : at + size]
        made = info.func(part, dim)
        length = made.shape[dim]
        out.narrow(dim, start, length).copy_(made)
        start += length
    return out


def _joined_rows(tensors: list[DeviceTensor], dim: int, stacks: bool) -> InternedGeometry | None:
    """The result's geometry where all are contiguous and differ along `dim` at most; else None.

    Inference by torch's meta kernel takes ten times as long.
    """
    geometries = {tensor._g for tensor in tensors}
    if not all(geometry.contiguous and not geometry.bits for geometry in geometries):
        return None
    first = tensors[0]._g
    shape, rank = list(first.shape), len(first.shape)
    if not -(rank + stacks) <= dim < rank + stacks:
        return None
    dim %= rank + stacks
    if stacks:
        if len(geometries) > 1:
            return None
        shape.insert(dim, len(tensors))
    else:
        outer = {(g.dtype, g.shape[:dim], g.shape[dim + 1 :], len(g.shape)) for g in geometries}
        if len(outer) > 1 or first.numel == 0:
            return None
        shape[dim] = sum(tensor._g.shape[dim] for tensor in tensors)
    return intern(first.dtype, tuple(shape), contiguous_stride(tuple(shape)))


def _joined(info: OpInfo, tensors: list[DeviceTensor], dim: int) -> InternedGeometry:
    """The result's geometry; raises what the op raises."""
    geometries = tuple(tensor._g for tensor in tensors)
    plan = plan_for(info, (tensors, dim), {}, geometries, (), current.session.probe)
    assert plan.single is not None
    return plan.single
