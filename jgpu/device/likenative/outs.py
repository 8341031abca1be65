"""`out=`: what is written into a tensor that is there already, of whatever size and type.

Natively the target is resized in place, so its storage is shared as before (`views.resize`). Ops
whose result fits are recorded like any other and do not come here.
"""

from collections.abc import Sequence
from sys import getrefcount
from typing import Any, Final

import torch

from jgpu.device.likenative import mixed, warned, words
from jgpu.device.recording.casts import Uncast
from jgpu.device.recording.infer import OpPlan
from jgpu.device.recording.ops import OpInfo
from jgpu.device.recording.viewing import views
from jgpu.device.tensor import DeviceTensor, device

__all__ = ["fill_in_shape", "flat", "into_outs", "make_room"]

#: these fill an `out` of as many elements whatever its shape is
_KEEP_SHAPE: Final = ("aten::arange", "aten::range", "aten::linspace", "aten::logspace")


def _filled(func: Any, args: Any, kwargs: dict[str, Any], target: DeviceTensor) -> Any:
    """Have a row made and copied into the target's own shape."""
    row = torch.empty(0, dtype=target.dtype, device=device())
    func(*args, **{name: row if value is target else value for name, value in kwargs.items()})
    return torch.ops.aten.copy_.default(target, row.view(target.shape))


def fill_in_shape(
    plan: OpPlan, tensors: Sequence[DeviceTensor], func: Any, args: Any, kwargs: dict[str, Any]
) -> Any:
    """Fill a target that has as many elements in another shape; None where that is not so."""
    if not plan.info.name.startswith(_KEEP_SHAPE):
        return None
    (target,), ((_, geometry),) = tensors, plan.grown
    if target._g.numel != geometry.numel or target._g.shape == geometry.shape:
        return None
    # what the kernel says of the target's type comes before what the copy says of its memory
    words.raise_as_native(plan.info, args, kwargs)
    return _filled(func, args, kwargs, target)


#: references to the buffer of a tensor that its factory, and nobody else, has in the log
_ALONE: Final = 4


def make_room(plan: OpPlan, tensors: Sequence[DeviceTensor]) -> bool:
    """Resize what the op is about to fill, where it has a storage that others may show.

    The common case is a factory's own empty tensor, which nobody else has seen.
    """
    found = [(tensors[k], geometry) for k, geometry in plan.grown]
    shared = [(t, g) for t, g in found if t._b.nbytes or getrefcount(t._b) > _ALONE]
    for tensor, geometry in shared:
        warned.tell_resized(tensor.shape, geometry.shape)
        views.resize(tensor, geometry.shape)
    return bool(shared)


def into_outs(info: OpInfo, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """`out=` of another size, or of a size that only the run tells: by way of the functional form.

    It has the strides that the device would give.
    """
    inputs = {name: value for name, value in kwargs.items() if name not in info.out_names}
    outs = [kwargs[name] for name in info.out_names]
    if not all(isinstance(target, DeviceTensor) for target in flat(outs)):
        mixed.check(info, args, kwargs)
    natives = words.check_outs(info, args, kwargs, inputs)
    if info.reduces_in_out_dtype and inputs.get("dtype") is None:
        inputs["dtype"] = outs[0].dtype
    assert info.functional is not None
    with Uncast():  # as is an op that writes into `out`
        results = flat(info.functional(*args, **inputs))
    for target, result in zip(flat(outs), results, strict=True):
        _check_out(info, args, target, result)
        if result.dtype != target.dtype:
            result = result.to(target.dtype)
        if result.shape != target.shape:
            warned.tell_resized(target.shape, result.shape)
            views.resize(target, result.shape)
            native = natives.get(id(target))
            laid = result if native is None or native.shape != result.shape else native
            if laid.stride() != target.stride() and info.name not in _ROW_MAJOR:
                target.as_strided_(laid.shape, laid.stride())
        torch.ops.aten.copy_.default(target, result)
    if not info.func._schema.returns:
        return None
    return outs[0] if len(outs) == 1 else tuple(outs)


#: whose `out=` natively has the result's own type
_EXACT_OUTS = (
    "aten::nonzero.out",
    "aten::masked_select.out",
    "aten::index_select.out",
    "aten::clamp.out",
)


#: of what is complex these compute a complex result, of which they copy a part
_OF_COMPLEX: Final = ("aten::abs.out", "aten::angle.out")

#: whose `out=` is natively resized without regard to strides
_ROW_MAJOR: Final = ("aten::stack.out",)


def _check_out(info: OpInfo, args: tuple[Any, ...], target: DeviceTensor, result: Any) -> None:
    """What torch looks at before it writes: the functional form knows nothing of the target."""
    elementwise = torch.Tag.pointwise in info.func.tags
    wrong = result.dtype != target.dtype and (
        info.name in _EXACT_OUTS or (elementwise and not torch.can_cast(result.dtype, target.dtype))
    )
    if wrong:
        given, wanted = (str(t.dtype).removeprefix("torch.") for t in (result, target))
        raise RuntimeError(f"result type {given} can't be cast to the desired output type {wanted}")
    looked_at = elementwise and not _is_resized_at_last(info, args, target, result)
    if 0 in _steps(target) and (looked_at or info.name in _EXACT_OUTS):
        raise RuntimeError(
            "unsupported operation: more than one element of the written-to tensor refers to a "
            "single memory location. Please clone() the tensor before performing the operation."
        )
    if elementwise and result.shape != target.shape and any(each is target for each in args):
        raise RuntimeError(
            f"output with shape {list(target.shape)} doesn't match the broadcast shape "
            f"{list(result.shape)}"
        )


def _is_resized_at_last(
    info: OpInfo, args: tuple[Any, ...], target: DeviceTensor, result: Any
) -> bool:
    """Whether torch computes elsewhere, and has no two elements in one place when it writes."""
    if info.name not in _OF_COMPLEX or target.shape == result.shape:
        return False
    return bool(args[0].is_complex() and not target.is_complex())


def _steps(tensor: DeviceTensor) -> list[int]:
    """Strides of the dimensions in which there is more than one element."""
    if not tensor._g.numel:
        return []
    return [step for size, step in zip(tensor._g.shape, tensor._g.stride, strict=True) if size > 1]


def flat(value: Any) -> list[Any]:
    """The leaves of lists, in order."""
    if isinstance(value, list | tuple):
        return [leaf for item in value for leaf in flat(item)]
    return [value]
