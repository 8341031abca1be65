"""What torch calls at each op on our tensors: the commonest calls, written out for speed.

Everything else goes on to `dispatch`. This is also a seam of `tracebacks`, in the same function,
for one more call at each op is what a user feels.

Invariant: what is built here (key, buffers, offsets, numbers) is what `dispatch` builds. Both look
up the same plans.
"""

import sys
from typing import TYPE_CHECKING, Any

from torch.nested._internal.nested_tensor import NestedTensor

from jgpu.device import current
from jgpu.device.recording.dispatch import dispatch, plans
from jgpu.device.recording.ops import VIEW, OpInfo, infos
from jgpu.device.recording.viewing import views
from jgpu.device.sparse.coo import SparseTensor
from jgpu.device.tensor import (
    Backend,
    BufferHandle,
    DeviceTensor,
    make_wrapper,
    new_buffer,
    wrap,
    wrapper_of,
)
from jgpu.device.tracebacks import hide

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["torch_dispatch"]


def torch_dispatch(
    cls: type, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
) -> Any:
    """`DeviceTensor.__torch_dispatch__`: the commonest calls, written out; the rest by `dispatch`.

    Handles recorded ops whose arguments are device tensors, numbers, None and lists of them, and
    that make one tensor or a list of some, or write arguments alone.
    """
    try:
        info = infos.get(id(func))
        if info is None:
            return _other(func, types, args, kwargs)
        if info.kind:
            alone = len(types) == 1 and not kwargs
            if alone and info.kind == VIEW and type(args[0]) is DeviceTensor:
                return views.view(info, args, kwargs)
            return _other(func, types, args, kwargs)
        session = current.session
        known = session.buffers
        graveyard = known.graveyard
        found: tuple[Any, ...] | None = None
        buffers: Sequence[BufferHandle]
        offsets: Sequence[int]
        params: Sequence[Any]
        twice = False  # whether a buffer is given more than once
        if not (kwargs or known.poisoned):
            # One tensor, two, or one and a number: nine of ten calls, and no list is filled.
            count = len(args)
            if count == 2:
                first, second = args
                if type(first) is DeviceTensor and (one := first._b).graveyard is graveyard:
                    kind = type(second)
                    if kind is DeviceTensor:
                        if (two := second._b).graveyard is graveyard:
                            found = info, first._g, second._g
                            buffers = one, two
                            offsets = first._o, second._o
                            params = ()
                            twice = one is two
                    elif (kind is float or kind is int) and info.lift[1] == 1:
                        found = info, first._g, kind
                        buffers = (one,)
                        offsets = (first._o,)
                        params = (second,)
            elif count == 1:
                first = args[0]
                if type(first) is DeviceTensor and (one := first._b).graveyard is graveyard:
                    found = info, first._g
                    buffers = (one,)
                    offsets = (first._o,)
                    params = ()
        if found is None:
            call = _collect(info, args, kwargs, graveyard, known.poisoned)
            if call is None:
                return _other(func, types, args, kwargs)
            found, buffers, offsets, params = call
            twice = info.in_place and len(buffers) > 1 and buffers.count(buffers[0]) > 1
        plan = plans.get(found)
        if plan is None or (plan.ranges is not None and plan.ranges.are_left(params)):
            return _other(func, types, args, kwargs)
        result: Any
        geometry = plan.single
        if geometry is not None:
            nbytes = geometry.nbytes
            made = BufferHandle(nbytes, graveyard)
            if nbytes > Backend.large:
                Backend.note_large(made)
            if geometry.bits:
                result = wrap(made, geometry)
            else:  # which is what `wrap` does
                result = make_wrapper(*(geometry.wrapper or wrapper_of(geometry)))
                result._b = made
                result._g = geometry
            outs: tuple[BufferHandle, ...] = (made,)
        elif plan.writes_first:
            if twice:  # it may read what it writes
                return _other(func, types, args, kwargs)
            result = args[0]
            outs = ()
        elif plan.many is not None:  # the foreach forms
            outs = tuple([new_buffer(each.nbytes, graveyard) for each in plan.many])
            result = list(map(wrap, outs, plan.many)) or None
        else:
            return _other(func, types, args, kwargs)
        log = session.log
        entries = log.entries
        frame = log.frame or log.look()
        entries.append(
            (plan, buffers, offsets, outs, params, frame.f_lasti if frame is not None else -1)
        )
        if len(entries) >= log.limit:
            session.cut_piece()
    except BaseException as error:
        hide(error, sys._getframe())
        raise
    return result


def _collect(
    info: OpInfo,
    args: tuple[Any, ...],
    kwargs: dict[str, Any] | None,
    graveyard: list[int],
    poisoned: dict[int, BaseException],
) -> tuple[tuple[Any, ...], list[BufferHandle], list[int], list[Any]] | None:
    """Key, buffers, offsets and numbers of a call of any length; None where `dispatch` must look.

    It raises for what is lost or poisoned, too.
    """
    key: list[Any] = [info]
    buffers: list[BufferHandle] = []
    offsets: list[int] = []
    params: list[Any] = []
    if kwargs:
        lift = info.keyword_lift
        for name, value in kwargs.items():
            kind = type(value)
            if not (kind is float or kind is int) or not lift.get(name):
                return None
    for lifted, value in zip(info.lift, args, strict=False):
        kind = type(value)
        if kind is DeviceTensor:
            buffer = value._b
            if buffer.graveyard is not graveyard or (poisoned and buffer.id in poisoned):
                return None
            key.append(value._g)
            buffers.append(buffer)
            offsets.append(value._o)
        elif value is None:
            key.append(None)
        elif lifted == 1 and (kind is float or kind is int):
            key.append(kind)
            params.append(value)
        elif kind is int and not lifted:
            key.append(value)
        elif kind is bool:
            key.append(bool)
            key.append("True" if value else "False")
        elif kind is list and lifted != 1:
            key.append(len(value))
            for item in value:
                inner = type(item)
                if inner is DeviceTensor:
                    buffer = item._b
                    if buffer.graveyard is not graveyard or (poisoned and buffer.id in poisoned):
                        return None
                    key.append(item._g)
                    buffers.append(buffer)
                    offsets.append(item._o)
                elif lifted:
                    if inner is not float and inner is not int:
                        return None
                    key.append(inner)
                    params.append(item)
                elif inner is int:
                    key.append(item)
                else:
                    return None
        else:
            return None
    if kwargs:
        for name, value in kwargs.items():
            key.append(name)
            key.append(type(value))
            params.append(value)
    return tuple(key), buffers, offsets, params


def _other(func: Any, types: Any, args: tuple[Any, ...], kwargs: Any) -> Any:
    if len(types) > 1 and (NestedTensor in types or SparseTensor in types):
        return NotImplemented  # these classes know what to do with what they are made of
    return dispatch(func, args, kwargs)
