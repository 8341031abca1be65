"""CUDA's branch of composites that ask whether a tensor `is_cuda()`, written out.

Torch's C++ takes the backend for "some GPU", but for CUDA nowhere: a composite that has another way
for CUDA goes the common one. On a CUDA executor the way is CUDA's; the rest of the composite, and
all derivatives, are torch's. What the device alone knows it is asked for, once for each geometry.

`BRANCHES` names each with what CUDA does otherwise. `docs/design.md` has a line for whatever
torch's sources branch on, also for what has no lowering, with the reason.
"""

from collections.abc import Callable
from typing import Any, Final

import torch
from torch import Tensor
from torch._prims_common import suggest_memory_format

from jgpu.device import current, flags
from jgpu.device.recording import dispatch
from jgpu.device.recording.ops import info_of
from jgpu.device.tensor import DeviceTensor
from jgpu.wire import messages as m
from jgpu.wire import program as wire

__all__ = ["BRANCHES", "LOWERINGS"]

#: op: what CUDA does otherwise
BRANCHES: Final = {
    "softmax.int": "halves that become float32 are converted inside the kernel",
    "log_softmax.int": "halves that become float32 are converted inside the kernel",
    "one_hot": "wrong classes are the write's to find, on every device",
    "_batch_norm_impl_index": "cuDNN computes it, where it suits",
    "_fused_rms_norm": "has a kernel of its own",
    "grid_sampler": "cuDNN samples between aligned corners, with zeros around them",
}

_aten: Any = torch.ops.aten
_CUDNN: Final = 1
#: types that cuDNN samples pictures of, the channels that it can, and elements that it counts
_SAMPLED: Final = (torch.float64, torch.float32, torch.float16)
_MOST_CHANNELS: Final = 1024
_MOST_ELEMENTS: Final = 2**31 - 1

#: answers of the device, by connection and question; few, for a model has few geometries
_norms: dict[tuple[Any, ...], int] = {}
_MOST: Final = 4096

_Lowering = Callable[[Any, tuple[Any, ...], dict[str, Any]], Any]


def _is_cuda() -> bool:
    return current.session.device_facts().has_cuda_kernels


# -- softmax -----------------------------------------------------------------------------------


def _softmax(kernel: Any) -> _Lowering:
    def lowering(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        dtype = args[2] if len(args) > 2 else kwargs.get("dtype")
        if dtype is torch.float32 and args[0].dtype is torch.float16 and _is_cuda():
            return kernel(args[0], args[1], True)
        return dispatch.take_apart(info_of(op), args, kwargs)

    return lowering


# -- classes -----------------------------------------------------------------------------------


def _one_hot(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Not as for a subclass, where a wrong class is a row of zeros: the write looks at it."""
    classes = args[0]
    count = args[1] if len(args) > 1 else kwargs.get("num_classes", -1)
    if classes.dtype is not torch.int64:
        return dispatch.take_apart(info_of(op), args, kwargs)
    if count <= 0:
        count = _count_classes(classes, count)
    rows = torch.zeros((*classes.shape, count), dtype=torch.int64, device=classes.device)
    return rows.scatter(-1, classes.unsqueeze(-1), 1)


def _count_classes(classes: Tensor, count: int) -> int:
    """Read how many classes there are; native PyTorch waits for that, too."""
    if not classes.numel():
        raise RuntimeError("Can not infer total number of classes from empty tensor.")
    if count != -1 and _is_cuda():
        raise RuntimeError("num_classes should be positive")
    least, most = torch.stack(torch.aminmax(classes)).tolist()
    if least < 0:
        raise RuntimeError("Class values must be non-negative.")
    if count != -1:
        raise RuntimeError("Class values must be smaller than num_classes.")
    return int(most) + 1


# -- batch norm --------------------------------------------------------------------------------


def _batch_norm(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    given, weight, bias, mean, var, training, momentum, epsilon, enabled = args
    tensors = (given, weight, bias, mean, var)
    plain = all(each is None or type(each) is DeviceTensor for each in tensors)
    if not (plain and enabled and given.numel() and _is_cuda()) or not _takes_cudnn(
        tensors, training, epsilon
    ):
        return dispatch.take_apart(info_of(op), args, kwargs)
    made = _aten.cudnn_batch_norm.default(
        given.contiguous(memory_format=suggest_memory_format(given)),
        *[None if each is None else each.contiguous() for each in tensors[1:]],
        *(training, momentum, epsilon),
    )
    return (*made, _CUDNN)


def _takes_cudnn(tensors: tuple[Any, ...], training: bool, epsilon: float) -> bool:
    session = current.session
    question: tuple[Any, ...] = (*map(_seen, tensors), training, epsilon, flags.current())
    asked = (session.connection.generation, *question)
    found = _norms.get(asked)
    if found is None:
        (found,) = session.choose(lambda request: m.ChooseNorm(request, *question))
        if len(_norms) >= _MOST:
            _norms.clear()
        _norms[asked] = found
    return found == _CUDNN


def _seen(tensor: DeviceTensor | None) -> wire.Geometry | None:
    """The geometry, from the storage's beginning: where a tensor begins decides nothing here."""
    return None if tensor is None else tensor._g.wire


# -- root mean squares -------------------------------------------------------------------------


class _FusedNorm(torch.autograd.Function):
    """`_fused_rms_norm` with the derivative that torch has for it on CUDA."""

    @staticmethod
    def forward(ctx: Any, given: Any, shape: Any, weight: Any, epsilon: Any) -> Any:
        made, rstd = dispatch.dispatch(
            _aten._fused_rms_norm.default, (given, shape, weight, epsilon), {}
        )
        ctx.save_for_backward(given, weight, rstd)
        ctx.shape = shape
        ctx.mark_non_differentiable(rstd)
        return made, rstd

    @staticmethod
    def backward(ctx: Any, grad: Any, _: Any) -> Any:
        given, weight, rstd = ctx.saved_tensors
        wanted = [ctx.needs_input_grad[0], weight is not None and ctx.needs_input_grad[2]]
        make = _in_steps if torch.is_grad_enabled() else _at_once
        to_input, to_weight = make(grad, given, ctx.shape, rstd, weight, wanted)
        return to_input, None, to_weight, None


def _at_once(*args: Any) -> Any:
    return _aten._fused_rms_norm_backward.default(*args)


def _in_steps(
    grad: Tensor, given: Tensor, shape: Any, rstd: Tensor, weight: Tensor | None, wanted: list[bool]
) -> tuple[Tensor | None, Tensor | None]:
    """The gradients in steps that can be differentiated; by the input, `rstd` included."""
    last = given.dim() - len(shape)
    inner, outer = tuple(range(last, given.dim())), tuple(range(last))
    epsilon_and_mean = rstd.detach().pow(-2) - given.detach().square().mean(inner, keepdim=True)
    rstd = (given.square().mean(inner, keepdim=True) + epsilon_and_mean).rsqrt()
    normed = given * rstd
    scaled = grad if weight is None else grad * weight
    to_input = rstd * (scaled - normed * (scaled * normed).mean(inner, keepdim=True))
    to_weight = (grad * normed).sum(outer) if outer else grad * normed
    return (to_input if wanted[0] else None), (to_weight if wanted[1] else None)


def _rms_norm(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if not _is_cuda():
        return dispatch.take_apart(info_of(op), args, kwargs)
    return _FusedNorm.apply(*args, *[None] * (4 - len(args)))


def _rms_norm_whole(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Where autograd is off it arrives whole, and is recorded so."""
    return NotImplemented if _is_cuda() else dispatch.take_apart(info_of(op), args, kwargs)


# -- pictures that are sampled -----------------------------------------------------------------


def _grid_sampler(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    given, grid, interpolation, padding, aligned = args
    suits = aligned and interpolation == padding == 0 and torch._C._get_cudnn_enabled()
    if suits and type(given) is type(grid) is DeviceTensor and _is_cuda() and _samples(given, grid):
        return _aten.cudnn_grid_sampler.default(given, grid)
    return dispatch.take_apart(info_of(op), args, kwargs)


def _samples(given: DeviceTensor, grid: DeviceTensor) -> bool:
    """Whether cuDNN would; what is wrong in itself is left to torch's kernel to refuse."""
    return (
        given.dim() == grid.dim() == 4
        and given.dtype is grid.dtype
        and given.dtype in _SAMPLED
        and (given.shape[0], 2) == (grid.shape[0], grid.shape[3])
        and given.shape[1] <= _MOST_CHANNELS
        and all(0 < _reach(each) <= _MOST_ELEMENTS for each in (given, grid))
    )


def _reach(tensor: DeviceTensor) -> int:
    """Elements from the first to the last, as they lie in memory; 0 where there are none."""
    if not tensor.numel():
        return 0
    steps = zip(tensor.shape, tensor.stride(), strict=True)
    return max(tensor.numel(), 1 + sum((size - 1) * step for size, step in steps))


#: op: what is registered for it, and what serves it where autograd is off
LOWERINGS: Final[dict[str, tuple[_Lowering, _Lowering]]] = {
    "softmax.int": (_softmax(_aten._softmax.default),) * 2,
    "log_softmax.int": (_softmax(_aten._log_softmax.default),) * 2,
    "one_hot": (_one_hot, _one_hot),
    "_batch_norm_impl_index": (_batch_norm, _batch_norm),
    "_fused_rms_norm": (_rms_norm, _rms_norm_whole),
    "grid_sampler": (_grid_sampler, _grid_sampler),
}
