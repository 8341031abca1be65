"""Meta kernels that torch lacks: for ops of CUDA that trained recurrent layers are made of, for
its sampler of pictures, and for two ops that torch 2.11 has none for.

With them what such an op returns is known before it runs: its programs are compiled, and a device
without kernels (`null`) can take them. Sizes that only cuDNN knows are small stand-ins, which the
device corrects when it is asked (`programs.probe`).
"""

from typing import Any

import torch

__all__ = ["install"]

_library: Any = None
_State = torch.Tensor | None


def install() -> None:
    """Register what this torch does not have; once a process."""
    global _library
    if _library is not None:
        return
    _library = torch.library.Library("aten", "IMPL")
    for name, kernel in _KERNELS.items():
        if not torch._C._dispatch_has_kernel_for_dispatch_key(f"aten::{name}", "Meta"):
            _library.impl(name, kernel, "Meta")


def _dropout_state(
    dropout: float, train: bool, seed: int, *, device: Any = None, **options: Any
) -> torch.Tensor:
    return torch.empty(16, dtype=torch.uint8, device=device)


def _cudnn_backward(
    input: torch.Tensor,  # noqa: A002 - the schema's name
    weight: list[torch.Tensor],
    stride: int,
    buffer: torch.Tensor,
    hx: torch.Tensor,
    cx: _State,
    output: torch.Tensor,
    grad_output: _State,
    grad_hy: _State,
    grad_cy: _State,
    *rest: Any,
) -> tuple[Any, ...]:
    wanted = rest[-1]
    made = input.new_empty(input.shape)
    states = hx.new_empty(hx.shape), None if cx is None else cx.new_empty(cx.shape)
    return made, *states, [w.new_empty(w.shape) for w in weight] if wanted[3] else []


def _sampled(given: torch.Tensor, grid: torch.Tensor) -> torch.Tensor:
    return given.new_empty((*given.shape[:2], *grid.shape[1:3]))


def _sampled_backward(
    given: torch.Tensor, grid: torch.Tensor, grad: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    return given.new_empty(given.shape), grid.new_empty(grid.shape)


def _gru_cell(
    input_gates: torch.Tensor,
    hidden_gates: torch.Tensor,
    hx: torch.Tensor,
    input_bias: _State = None,
    hidden_bias: _State = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    return hx.new_empty(hx.shape), hx.new_empty((hx.shape[0], 5 * hx.shape[1]))


def _gru_cell_backward(
    grad: torch.Tensor, workspace: torch.Tensor, has_bias: bool
) -> tuple[_State, ...]:
    batch, hidden = grad.shape
    gates = [grad.new_empty((batch, 3 * hidden)) for _ in range(2)]
    biases = [grad.new_empty((3 * hidden,)) if has_bias else None for _ in range(2)]
    return *gates, grad.new_empty(grad.shape), *biases


def _encoder_layer(src: torch.Tensor, *rest: Any) -> torch.Tensor:
    return torch.empty_like(src)


def _gamma(concentration: torch.Tensor, generator: Any = None) -> torch.Tensor:
    return concentration.new_empty(concentration.shape)


_KERNELS = {
    "_cudnn_init_dropout_state": _dropout_state,
    "_cudnn_rnn_backward": _cudnn_backward,
    "cudnn_grid_sampler": _sampled,
    "cudnn_grid_sampler_backward": _sampled_backward,
    "_standard_gamma": _gamma,
    "_thnn_fused_gru_cell": _gru_cell,
    "_thnn_fused_gru_cell_backward": _gru_cell_backward,
    "_transformer_encoder_layer_fwd": _encoder_layer,
}
