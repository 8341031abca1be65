"""cuDNN's convolutions and samplers, and its loss of unaligned sequences."""

from collections.abc import Sequence
from typing import Any, Final

import torch
from torch import Tensor

from jgpu.broker.executor.devices.onhost.kernels.tables import into, kernel

__all__: list[str] = []

aten = torch.ops.aten
_BILINEAR, _ZEROS = 0, 0
#: the longest target that cuDNN's loss takes
_MOST_TARGETS: Final = 256


def _convolved(
    given: Tensor, weight: Tensor, bias: Tensor | None, stride: Any, padding: Any, dilation: Any,
    groups: int, transposed: bool = False, more: Any = None,
) -> Tensor:  # fmt: skip
    """Halves are summed in float32."""
    dtype = torch.float64 if given.dtype is torch.float64 else torch.float32
    tensors = (None if each is None else each.to(dtype) for each in (given, weight, bias))
    more = [0] * len(stride) if more is None else more
    made: Tensor = aten.convolution.default(
        *tensors, stride, padding, dilation, transposed, more, groups
    )
    return made


@kernel("cudnn_convolution")
def _convolution(
    given: Tensor, weight: Tensor, padding: Any, stride: Any, dilation: Any, groups: int,
    *switches: bool,
) -> Tensor:  # fmt: skip
    return _convolved(given, weight, None, stride, padding, dilation, groups).to(given.dtype)


@kernel("cudnn_convolution_transpose")
def _transposed(
    given: Tensor, weight: Tensor, padding: Any, more: Any, stride: Any, dilation: Any,
    groups: int, *switches: bool,
) -> Tensor:  # fmt: skip
    made = _convolved(given, weight, None, stride, padding, dilation, groups, True, more)
    return made.to(given.dtype)


@kernel("cudnn_convolution_relu")
def _rectified(
    given: Tensor, weight: Tensor, bias: Tensor | None, stride: Any, padding: Any, dilation: Any,
    groups: int,
) -> Tensor:  # fmt: skip
    made = _convolved(given, weight, bias, stride, padding, dilation, groups)
    return made.relu().to(given.dtype)


@kernel("cudnn_convolution_add_relu")
def _added_and_rectified(
    given: Tensor, weight: Tensor, added: Tensor, alpha: Any, bias: Tensor | None, stride: Any,
    padding: Any, dilation: Any, groups: int,
) -> Tensor:  # fmt: skip
    made = _convolved(given, weight, bias, stride, padding, dilation, groups)
    factor = 1 if alpha is None else alpha
    return (made + factor * added.to(made.dtype)).relu().to(given.dtype)


# -- samplers, which align corners ---------------------------------------------------------------


@kernel("cudnn_grid_sampler")
def _sampled(given: Tensor, grid: Tensor) -> Tensor:
    made: Tensor = aten.grid_sampler_2d.default(given, grid, _BILINEAR, _ZEROS, True)
    return made


@kernel("cudnn_grid_sampler.out")
def _sampled_into(given: Tensor, grid: Tensor, out: Tensor) -> Tensor:
    return into(out, _sampled(given, grid))


@kernel("cudnn_grid_sampler_backward")
def _sampled_backward(given: Tensor, grid: Tensor, grad: Tensor) -> tuple[Tensor, Tensor]:
    of_given, of_grid = aten.grid_sampler_2d_backward.default(
        grad, given, grid, _BILINEAR, _ZEROS, True, [True, True]
    )
    return of_given, of_grid


@kernel("cudnn_affine_grid_generator")
def _grid(theta: Tensor, *shape: int) -> Tensor:
    made: Tensor = aten.affine_grid_generator.default(theta, list(shape), True)
    return made


@kernel("cudnn_affine_grid_generator_backward")
def _grid_backward(grad: Tensor, *shape: int) -> Tensor:
    made: Tensor = aten.affine_grid_generator_backward.default(grad, list(shape), True)
    return made


# -- unaligned sequences -------------------------------------------------------------------------


def _listed(lengths: Any) -> list[int]:
    return [int(each) for each in lengths]


@kernel("_cudnn_ctc_loss", "_cudnn_ctc_loss.Tensor")
def _unaligned(
    log_probs: Tensor, targets: Tensor, lengths: Any, target_lengths: Any, blank: int,
    deterministic: bool, zero_infinity: bool,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """The loss of each sample, and its gradient with that of the softmax before it."""
    sizes = _listed(lengths), _listed(target_lengths)
    # whether infinity becomes zero is decided by who calls
    loss, alpha = aten._ctc_loss.default(log_probs, targets, *sizes, blank, False)
    gradient = aten._ctc_loss_backward.default(
        torch.ones_like(loss), log_probs, targets, *sizes, loss, alpha, blank, False
    )
    return loss, gradient


@kernel("_ctc_loss", "_ctc_loss.Tensor")
def _natively(
    log_probs: Tensor, targets: Tensor, lengths: Any, target_lengths: Any, blank: int,
    zero_infinity: bool,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Behind the end of a sequence or a target the CPU computes no likelihoods; here they are 0."""
    steps, found = _listed(lengths), _listed(target_lengths)
    loss, alpha = aten._ctc_loss.default(log_probs, targets, steps, found, blank, zero_infinity)
    for sample, (step, target) in enumerate(zip(steps, found, strict=True)):
        alpha[sample, max(step, 1) :] = 0
        alpha[sample, 1:, 2 * target + 1 :] = 0
    return loss, alpha


@kernel("_use_cudnn_ctc_loss", "_use_cudnn_ctc_loss.Tensor")
def _takes_unaligned(
    log_probs: Tensor, targets: Tensor, lengths: Sequence[int], target_lengths: Any, blank: int
) -> bool:
    steps, found = _listed(lengths), _listed(target_lengths)
    return bool(
        torch.backends.cudnn.enabled
        and blank == 0
        and targets.dim() == 1
        and log_probs.dim() == 3
        and log_probs.dtype is torch.float32
        and targets.dtype is torch.int32
        and all(each == log_probs.shape[0] for each in steps)
        and all(t <= _MOST_TARGETS and t <= s for t, s in zip(found, steps, strict=True))
    )
