"""What torch calls at each op on our tensors: the commonest calls, written out for speed.

Everything else goes on to `dispatch`. This is also a seam of `tracebacks`, in the same function,
for one more call at each op is what a user feels.

Invariant: what is built here (key, buffers, offsets, numbers) is what `dispatch` builds. Both look
up the same plans.
"""

import sys
from typing import Any

from torch.nested._internal.nested_tensor import NestedTensor

from jgpu.device import current
from jgpu.device.recording import views
from jgpu.device.recording.dispatch import dispatch, plans
from jgpu.device.recording.ops import VIEW, infos
from jgpu.device.tensor import BufferHandle, DeviceTensor, new_buffer, wrap
from jgpu.device.tracebacks import hide

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
        if kwargs:
            lift = info.keyword_lift
            for name, value in kwargs.items():
                kind = type(value)
                if not (kind is float or kind is int) or not lift.get(name):
                    return _other(func, types, args, kwargs)
        session = current.session
        known = session.buffers
        graveyard = known.graveyard
        poisoned = known.poisoned
        key: list[Any] = [info]
        buffers: list[BufferHandle] = []
        offsets: list[int] = []
        params: list[Any] = []
        for lifted, value in zip(info.lift, args, strict=False):
            kind = type(value)
            if kind is DeviceTensor:
                buffer = value._b
                if buffer.graveyard is not graveyard or (poisoned and buffer.id in poisoned):
                    return _other(func, types, args, kwargs)  # which raises
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
                        if buffer.graveyard is not graveyard or (
                            poisoned and buffer.id in poisoned
                        ):
                            return _other(func, types, args, kwargs)
                        key.append(item._g)
                        buffers.append(buffer)
                        offsets.append(item._o)
                    elif lifted:
                        if inner is not float and inner is not int:
                            return _other(func, types, args, kwargs)
                        key.append(inner)
                        params.append(item)
                    elif inner is int:
                        key.append(item)
                    else:
                        return _other(func, types, args, kwargs)
            else:
                return _other(func, types, args, kwargs)
        if kwargs:
            for name, value in kwargs.items():
                key.append(name)
                key.append(type(value))
                params.append(value)
        plan = plans.get(tuple(key))
        if plan is None:
            return _other(func, types, args, kwargs)
        result: Any
        geometry = plan.single
        if geometry is not None:
            made = new_buffer(geometry.nbytes, graveyard)
            result = wrap(made, geometry)
            outs: tuple[BufferHandle, ...] = (made,)
        elif plan.writes_first:
            if buffers.count(buffers[0]) > 1:  # it may read what it writes
                return _other(func, types, args, kwargs)
            result = args[0]
            outs = ()
        elif plan.many is not None:  # the foreach forms
            outs = tuple(new_buffer(each.nbytes, graveyard) for each in plan.many)
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


def _other(func: Any, types: Any, args: tuple[Any, ...], kwargs: Any) -> Any:
    if len(types) > 1 and NestedTensor in types:
        return NotImplemented  # it knows what to do with the values that it is made of
    return dispatch(func, args, kwargs)
