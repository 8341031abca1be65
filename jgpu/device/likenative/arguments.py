"""Arguments that native kernels take, and meta kernels or the executor do not.

Masks and labels of bytes; complex numbers that fill real tensors; vectors with gaps in batch norm's
backward; that gradients are to be sparse, of which a forward knows nothing; and several tensors
that share memory, where a kernel compares their identity.
"""

import operator
from typing import Any, Final

import torch

from jgpu.device.likenative import warned
from jgpu.device.recording.ops import OpInfo
from jgpu.device.tensor import DeviceTensor

__all__ = ["as_taken", "is_elementwise", "told_apart"]

#: ops whose masks may be of bytes, as natively: which argument
_MASKED: Final = {
    "aten::index.Tensor": 1, "aten::index_put": 1, "aten::index_put_": 1, "aten::where.self": 0
}  # fmt: skip

_OF_INDEX: Final = (
    "indexing with dtype torch.uint8 is now deprecated, please use a dtype torch.bool instead."
)
_OF_WHERE: Final = (
    "where received a uint8 condition tensor. This behavior is deprecated and will be removed in a "
    "future version of PyTorch. Use a boolean condition instead."
)


#: losses whose labels may be of bytes: which argument
_LABELLED: Final = {"aten::nll_loss_forward": 1, "aten::nll_loss_backward": 2}


#: lookups whose backward makes sparse gradients, with the argument that requests them
_SPARSE: Final = {"aten::_embedding_bag": 5, "aten::_embedding_bag_forward_only": 5}


#: kernels that may take vectors for dense ones without looking, which the executor does for them
_VECTORS: Final = {"aten::native_batch_norm_backward": ("weight", "running_mean", "running_var")}
#: fills with a number, which is converted as a whole: real, or true if it is not 0
_FILLED: Final = "aten::masked_fill.Scalar"
#: sum over all dimensions if the list of them is empty, which its meta kernel does not
_SUM_OF_NUMBERS: Final = "aten::nansum"
#: looks whether its first three tensors are one, and then projects them at once
_ASKS_WHETHER_ONE: Final = "aten::_native_multi_head_attention"


def as_taken(info: OpInfo, args: tuple[Any, ...]) -> tuple[Any, ...] | None:
    """The arguments as they are taken, where some are not; masks are of booleans then."""
    at = _SPARSE.get(info.name)
    if at is not None and len(args) > at and args[at]:
        return (*args[:at], False, *args[at + 1 :])
    at = _LABELLED.get(info.name)
    if at is not None and isinstance(args[at], torch.Tensor) and args[at].dtype is torch.uint8:
        return (*args[:at], args[at].long(), *args[at + 1 :])
    named = _VECTORS.get(info.name)
    if named is not None:
        return _without_gaps(info, args, named)
    if info.name.partition(".")[0] == _SUM_OF_NUMBERS and args[1:] and args[1] == []:
        return (args[0], None, *args[2:])
    if info.name == _FILLED and type(args[2]) is complex:
        return _with_real_number(args)
    at = _MASKED.get(info.name)
    if at is None:
        return None
    many = isinstance(args[at], list | tuple)
    given = list(args[at]) if many else [args[at]]
    count = sum(isinstance(mask, torch.Tensor) and mask.dtype is torch.uint8 for mask in given)
    if not count:
        return None
    if "index_put" in info.name and args[2].numel() == 1:
        return None  # natively refused
    text = _OF_WHERE if info.name == "aten::where.self" else _OF_INDEX
    warned.tell(((UserWarning, text),) * count)
    masks = [
        mask.bool() if isinstance(mask, torch.Tensor) and mask.dtype is torch.uint8 else mask
        for mask in given
    ]
    return (*args[:at], masks if many else masks[0], *args[at + 1 :])


def is_elementwise(info: OpInfo, args: tuple[Any, ...]) -> bool:
    """Whether it is elementwise on a device tensor, so that a 0-dim host tensor is a number."""
    return torch.Tag.pointwise in info.func.tags and isinstance(args[0], DeviceTensor)


def told_apart(info: OpInfo, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """The arguments, with copies where tensors that are several here would be one to the executor.

    Tensors of one buffer and geometry are one to it, such as those that `vmap` makes of a tensor.
    """
    if info.name != _ASKS_WHETHER_ONE:
        return args
    given: list[Any] = []
    for at, tensor in enumerate(args[:3]):
        first = next(k for k, each in enumerate(args) if each is tensor)
        if first < at:
            given.append(given[first])
        else:
            is_one = any(_is_one(tensor, each) for each in args[:at])
            given.append(tensor.clone() if is_one else tensor)
    return args if all(map(operator.is_, given, args)) else (*given, *args[3:])


def _is_one(tensor: Any, other: Any) -> bool:
    if type(tensor) is not DeviceTensor or type(other) is not DeviceTensor:
        return False
    return (tensor._b, tensor._g, tensor._o) == (other._b, other._g, other._o)


def _with_real_number(args: tuple[Any, ...]) -> tuple[Any, ...] | None:
    into, mask, number = args
    if into.dtype is torch.bool:
        return into, mask, bool(number)
    if number.imag == 0 and not into.is_complex():
        return into, mask, number.real
    return None  # natively refused, or taken


def _without_gaps(
    info: OpInfo, args: tuple[Any, ...], names: tuple[str, ...]
) -> tuple[Any, ...] | None:
    """Return dense copies with the values that the kernel would have read by strides."""
    places = [info.positions[name] for name in names]
    apart = [at for at in places if args[at] is not None and not args[at].is_contiguous()]
    if not apart:
        return None
    return tuple(each.contiguous() if at in apart else each for at, each in enumerate(args))
