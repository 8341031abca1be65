"""From a PyTorch op to a line of the log: the hot path of the kernel side.

`dispatch` is what `entry` and the PrivateUse1 fallback call. It builds a key from the op, the
interned geometries of its tensors and its constants, looks the plan up, makes the outputs as
wrappers over new buffers and appends one entry to the session's log. Only ops of kind WAIT, calls
that `OpPlan.confirm` doubts, and copies to the host wait.

Invariant: an entry names buffers, never tensors; whoever reads the log later sees what the op saw.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec
import torch

from jgpu.device import current, flags
from jgpu.device.errors import no_kernel, refused
from jgpu.device.hooks import collectives
from jgpu.device.likenative import arguments, listed, mixed, outs, overlaps, stricter, words
from jgpu.device.recording import answers, casts, copies
from jgpu.device.recording.infer import OpPlan, fact, plan_for
from jgpu.device.recording.longlists import bounds, splitting
from jgpu.device.recording.ops import (
    ANSWERED,
    ASKS_GRAD_MODE,
    CHOOSES_KERNEL,
    COMPOSITE,
    COPY,
    FACT,
    HOST_ARGUMENTS,
    REFUSED,
    STREAM,
    VIEW,
    WAIT,
    OpInfo,
    info_of,
    infos,
)
from jgpu.device.recording.record import RecordedCall, Rewritten, record
from jgpu.device.recording.viewing import views
from jgpu.device.sparse import coo_ops
from jgpu.device.tensor import DeviceTensor, device
from jgpu.device.tensors import nested

__all__ = ["as_it_came", "dispatch", "plans", "take_apart"]

plans: dict[Any, OpPlan] = {}
#: most plans kept; growing caches (a text generator's) would otherwise never end
_MAX_PLANS = 1 << 16
#: factories that take the default dtype, which only this process knows
_EMPTY = "aten::empty"
_masked_fill = torch.ops.aten.masked_fill_
#: the composite that looks at a weight through a view: only of it `matmul` would see otherwise
_LINEAR = "aten::linear"
_VIEWS = torch._C.DispatchKey.ADInplaceOrView


def forget_plans() -> None:
    """Infer every plan again."""
    plans.clear()


def dispatch(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any] | None) -> Any:
    """Carry out one aten op on the shared device; returns what torch expects of it."""
    info = infos.get(id(func)) or info_of(func)
    if info.kind != STREAM:
        special = _SPECIAL[info.kind](info, args, kwargs or {})
        if type(special) is Rewritten:
            if special.func is not None:
                return dispatch(special.func, special.args, {})
            args = special.args
        elif special is not NotImplemented:
            return special
    if info.by_function:
        return outs.into_outs(info, args, kwargs or {})
    call = RecordedCall(info)
    key = call.key
    lift = info.lift
    for i, value in enumerate(args):
        kind = type(value)
        if kind is DeviceTensor:
            key.append(value._g)
            call.tensors.append(value)
            call.buffers.append(value._b)
            call.offsets.append(value._o)
        elif kind is float and lift and lift[i]:
            key.append(float)
            call.params.append(value)
        elif value is None:
            key.append(None)
        else:
            call.add(value, lift[i] if lift else 0)
    if kwargs:
        if "device" in kwargs:
            if _elsewhere(kwargs["device"]):
                return _on_host(func, args, kwargs)
            if info.factory and kwargs.get("dtype") is None and info.name.startswith(_EMPTY):
                kwargs = {**kwargs, "dtype": torch.get_default_dtype()}
        for name, value in kwargs.items():
            key.append(name)
            if name == "generator":
                key.append(current.session.generators.index_of(value))
            else:
                call.add(value, info.keyword_lift.get(name, 0))
    if call.host:
        made = _with_host(info, args, kwargs or {})
        if made is not NotImplemented:
            return made
    found = tuple(key)
    plan = plans.get(found)
    if plan is None:
        if (made := splitting.in_parts(call, info, args, kwargs or {})) is not NotImplemented:
            return made
        rewritten = arguments.as_taken(info, args)
        if rewritten is not None:
            return dispatch(func, rewritten, kwargs)
        try:
            plan = _new_plan(found, info, args, kwargs or {}, call)
        except (*words.REFUSING, ZeroDivisionError):  # a mean of nothing, to a meta kernel
            made = stricter.otherwise(info, args, kwargs or {})
            if made is NotImplemented:
                raise
            return made
    if info.writes:
        overlaps.check(plan, args, kwargs or {}, call.tensors)
    if plan.warns or plan.looks:
        plan.tell(args, kwargs or {})
    if (plan.grown or plan.outs is None) and info.takes_tensor and info.functional is not None:
        return outs.into_outs(info, args, kwargs or {})
    if plan.grown:
        made = outs.fill_in_shape(plan, call.tensors, func, args, kwargs or {})
        if made is not None:
            return made
        if outs.make_room(plan, call.tensors):
            return dispatch(func, args, kwargs)
    made = record(plan, call)
    if plan.is_watched or plan.ranges is not None:
        plan.confirm(call.params)
    return made


def _new_plan(
    key: tuple[Any, ...],
    info: OpInfo,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    call: RecordedCall,
) -> OpPlan:
    if len(plans) >= _MAX_PLANS:
        plans.clear()
    geometries = tuple(tensor._g for tensor in call.tensors)
    plan = plan_for(info, args, kwargs, geometries, call.params, current.session.probe)
    bounds.check_plan(plan, args, kwargs, len(call.params))
    overlaps.check_itself(plan, args, kwargs, call.tensors)
    plans[key] = plan
    return plan


def _elsewhere(where: Any) -> bool:
    if where is None or where == device():
        return False
    return torch.device(where).type not in (device().type, "cuda")


def _on_host(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """`empty_like(x, device="cpu")` and its like: the device's tensors lend their geometry only."""
    target = torch.device(kwargs["device"]).type

    def stand_in(value: Any) -> Any:
        if not isinstance(value, DeviceTensor):
            return value
        geometry = value._g
        return torch.empty_strided(
            geometry.shape, geometry.stride, dtype=geometry.dtype, device=target
        )

    return func(*(stand_in(value) for value in args), **kwargs)


def _with_host(info: OpInfo, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """An op with host tensors: what it returns, if they do not simply travel as numbers.

    Index tensors and their like are uploaded; what may not meet raises before a byte is copied.
    """
    if listed.is_mixed(info, args, kwargs):
        return listed.one_by_one(info, args, kwargs)
    mixed.check(info, args, kwargs)
    if info.func is _masked_fill.Tensor and isinstance(args[1], DeviceTensor):
        return dispatch(_masked_fill.Scalar, (*args[:2], args[2].item()), {})  # for meta kernels
    if info.name not in HOST_ARGUMENTS:
        if not mixed.is_composite(info) or arguments.is_elementwise(info, args):
            return NotImplemented
        return info.func._op_dk(torch._C.DispatchKey.CompositeExplicitAutograd, *args, **kwargs)

    def move(value: Any) -> Any:
        if isinstance(value, list | tuple):
            return [move(item) for item in value]
        if type(value) is DeviceTensor or not isinstance(value, torch.Tensor):
            return value
        return copies.upload(value)

    moved = {name: move(value) for name, value in kwargs.items()}
    return dispatch(info.func, tuple(move(value) for value in args), moved)


def _view(info: OpInfo, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return views.view(info, args, kwargs)


def _copy(info: OpInfo, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return copies.copy(info, args, kwargs)


def _refuse(info: OpInfo, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    make = coo_ops.OF_DENSE.get(info.name) or nested.KERNELS.get(info.name)
    if make is not None:
        return make(*args, **kwargs)
    if info.name.startswith("c10d::"):
        return collectives.by_host(info, args, kwargs)
    if not info.name.startswith("aten::"):
        raise no_kernel(info.name, info.refusal or "")
    raise refused(info.name, info.refusal or "")


#: composites that the executor's device lowers in its own way; filled by `composites`
LOWERED: dict[str, Callable[[Any, tuple[Any, ...], dict[str, Any]], Any]] = {}


def _composite(info: OpInfo, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Composites arrive whole where autograd is off (inference mode), or if a library made them."""
    lower = LOWERED.get(info.name)
    with casts.as_outside():
        if lower is not None:
            return lower(info.func, args, kwargs)
        return take_apart(info, args, kwargs)


def take_apart(info: OpInfo, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call a composite's kernel: torch's own; one in Python, of other bits, only if that is all."""
    func, key = info.func, info.composite
    kernel = func.py_kernels.get(key)
    if kernel is None or torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), key):
        kernel = partial(func._op_dk, key)
    if info.name == _LINEAR and torch.is_inference_mode_enabled():
        with as_it_came():
            return kernel(*args, **kwargs)
    return kernel(*args, **kwargs)


def as_it_came() -> Any:
    """In inference mode a composite arrives past what makes views of normal tensors normal ones.

    They want gradients if those do, by which `matmul` chooses its way, whoever computes them.
    """
    excluded = torch._C._dispatch_tls_local_exclude_set().remove(_VIEWS)
    return torch._C._ForceDispatchKeyGuard(torch._C._dispatch_tls_local_include_set(), excluded)


def _train_if_grad(info: OpInfo, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The kernel asks whether gradients are recorded, which the executor cannot know: say it.

    In place of `train`, which no kernel looks at.
    """
    at = info.positions["train"]
    return Rewritten((*args[:at], torch.is_grad_enabled(), *args[at + 1 :]))


def _choose(info: OpInfo, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The kernel chooses by switches that programs do not have: where they are not torch's own, the
    op is a program by itself, which has them."""
    session, now, apart = current.session, flags.current(), arguments.told_apart(info, args)
    chosen = msgspec.structs.replace(now, **flags.attention())
    if chosen == now or not session.device_facts().has_cuda_kernels:
        return NotImplemented if apart is args else Rewritten(apart)
    session.cut()
    with flags.recorded_under(chosen):
        made = dispatch(info.func, apart, kwargs)
        session.cut()
    return made


def _answer(info: OpInfo, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if info.takes_tensor and mixed.compares(info):
        mixed.check(info, args, kwargs)
    return answers.ANSWERS[info.name](*args, **kwargs)


_SPECIAL: dict[int, Callable[[OpInfo, tuple[Any, ...], dict[str, Any]], Any]] = {
    VIEW: _view,
    COPY: _copy,
    WAIT: lambda info, args, kwargs: NotImplemented,
    REFUSED: _refuse,
    FACT: fact,
    COMPOSITE: _composite,
    ASKS_GRAD_MODE: _train_if_grad,
    CHOOSES_KERNEL: _choose,
    ANSWERED: _answer,
}
