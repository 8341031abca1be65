"""Recurrent cells and dropout written out: the ops that torch's own code takes on the host.

For an executor that computes on the CPU. Torch chooses by where tensors live, so on the device it
would take the fused kernels of a GPU; on stand-ins (`composites`) it chooses rightly, at twice the
cost, which a loop over cells pays at each step, and a model's every layer for its dropout.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

import torch
from torch import Tensor
from torch.nn.functional import linear

from jgpu.device.tensor import DeviceTensor, device, device_tensors

__all__ = ["are_ours", "dropped", "is_transformed", "is_wrapped", "step_of"]

#: whether a transform of `torch.func` has wrapped it; whatever torch is called with it unwraps
is_wrapped: Any = torch._C._functorch.is_functorch_wrapped_tensor


def are_ours(values: Iterable[Any]) -> bool:
    """Whether all tensors among these are the device's, wrapped or not."""
    return all(
        type(each) is DeviceTensor or (each.device == device() and is_wrapped(each))
        for each in values
        if isinstance(each, torch.Tensor)
    )


def is_transformed(values: Sequence[Any]) -> bool:
    """Whether all tensors among these are the device's, and some are inside a transform."""
    # most are plain, which is quickly seen
    if all(type(each) is DeviceTensor or not isinstance(each, torch.Tensor) for each in values):
        return False
    return are_ours(values)


def _lstm(
    x: Tensor, state: list[Tensor], w_ih: Tensor, w_hh: Tensor, b_ih: Any = None, b_hh: Any = None
) -> tuple[Tensor, Tensor]:
    """`torch.lstm_cell`"""
    hidden, cell = state
    gates = linear(hidden, w_hh, b_hh).add_(linear(x, w_ih, b_ih))
    chunks = torch.unsafe_chunk(gates, 4, 1)
    taken, kept = chunks[0].sigmoid_(), chunks[1].sigmoid_()
    new, shown = chunks[2].tanh_(), chunks[3].sigmoid_()
    cell = (kept * cell).add_(taken * new)
    return shown * cell.tanh(), cell


def _gru(
    x: Tensor, hidden: Tensor, w_ih: Tensor, w_hh: Tensor, b_ih: Any = None, b_hh: Any = None
) -> Tensor:
    """`torch.gru_cell`"""
    of_x = torch.unsafe_chunk(linear(x, w_ih, b_ih), 3, 1)
    of_h = torch.unsafe_chunk(linear(hidden, w_hh, b_hh), 3, 1)
    reset = of_h[0].add_(of_x[0]).sigmoid_()
    kept = of_h[1].add_(of_x[1]).sigmoid_()
    new = of_x[2].add(of_h[2].mul_(reset)).tanh_()
    return (hidden - new).mul_(kept).add_(new)


def dropped(x: Tensor, p: float, train: bool) -> Tensor | None:
    """`torch.dropout`; None where torch's own has to look at the arguments."""
    if not (type(x) is DeviceTensor or is_transformed((x,))) or not 0 <= p < 1:
        return None
    if not train or p == 0 or not x.numel():
        return x
    if not x.dtype.is_floating_point:
        return None
    return x * torch.empty_like(x).bernoulli_(1 - p).div_(1 - p)


#: by op: itself, and rows of its weights by element of the state
_STEPS: Final[dict[str, tuple[Callable[..., Any], int]]] = {
    "lstm_cell": (_lstm, 4),
    "gru_cell": (_gru, 3),
}


def step_of(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Callable[..., Any] | None:
    """The op of that name, written out; None where torch's own has to look at the arguments.

    So it has where not all is on the device, or where sizes do not go together.
    """
    step, gates = _STEPS.get(name, (None, 0))
    if step is None or kwargs or len(args) < 4:
        return None
    if not all(type(each) is DeviceTensor for each in device_tensors(args)):
        return None
    x, state, w_ih, w_hh, *biases = args
    states = state if isinstance(state, list | tuple) else [state]
    tensors = [x, *states, w_ih, w_hh]
    if len(states) != (2 if step is _lstm else 1) or any(each.dim() != 2 for each in tensors):
        return None
    width = w_hh.shape[1]
    fits = all(tuple(each.shape) == (x.shape[0], width) for each in states)
    fits = fits and tuple(w_ih.shape) == (gates * width, x.shape[1])
    fits = fits and tuple(w_hh.shape) == (gates * width, width)
    fits = fits and all(each is None or each.shape == (gates * width,) for each in biases)
    return step if fits else None
