"""Fused cells of recurrent layers, whose workspaces the CPU's layers have no use for."""

import torch
from torch import Tensor

from jgpu.broker.executor.devices.onhost.kernels.tables import kernel

__all__: list[str] = []


def _wide(tensor: Tensor) -> Tensor:
    return tensor.to(torch.float64 if tensor.dtype is torch.float64 else torch.float32)


def _biased(gates: Tensor, bias: Tensor | None) -> Tensor:
    return _wide(gates) if bias is None else _wide(gates) + _wide(bias)


@kernel("_thnn_fused_lstm_cell")
def _lstm(
    of_input: Tensor, of_hidden: Tensor, cx: Tensor, bias: Tensor | None,
    hidden_bias: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """The new states, and the gates after their functions."""
    gates = _biased(of_input, bias) + _biased(of_hidden, hidden_bias)
    entered, forgot, offered, shown = gates.chunk(4, 1)
    entered, forgot, shown = entered.sigmoid(), forgot.sigmoid(), shown.sigmoid()
    offered = offered.tanh()
    cy = forgot * _wide(cx) + entered * offered
    hy, workspace = shown * cy.tanh(), torch.cat((entered, forgot, offered, shown), 1)
    return hy.to(cx.dtype), cy.to(cx.dtype), workspace.to(cx.dtype)


@kernel("_thnn_fused_lstm_cell_backward_impl")
def _lstm_backward(
    grad_hy: Tensor | None, grad_cy: Tensor | None, cx: Tensor, cy: Tensor, workspace: Tensor,
    biased: bool,
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:  # fmt: skip
    """Gradients of the gates, of the cell before, and of either bias."""
    if grad_hy is None and grad_cy is None:
        return None, None, None
    zero = torch.zeros_like(cx)
    of_hy, of_cy = (_wide(zero if each is None else each) for each in (grad_hy, grad_cy))
    entered, forgot, offered, shown = _wide(workspace).chunk(4, 1)
    known = _wide(cy).tanh()
    of_cell = of_hy * shown * (1 - known * known) + of_cy
    parts = (
        of_cell * offered * (1 - entered) * entered,
        of_cell * _wide(cx) * (1 - forgot) * forgot,
        of_cell * entered * (1 - offered * offered),
        of_hy * known * (1 - shown) * shown,
    )
    gates = torch.cat(parts, 1).to(workspace.dtype)
    of_bias = gates.sum(0) if biased else None
    return gates, (of_cell * forgot).to(cx.dtype), of_bias


@kernel("_thnn_fused_lstm_cell_backward")
def _lstm_backward_twice(
    grad_hy: Tensor | None, grad_cy: Tensor | None, cx: Tensor, cy: Tensor, workspace: Tensor,
    biased: bool,
) -> tuple[Tensor | None, ...]:  # fmt: skip
    """The same with each gradient in both of its places."""
    gates, of_cell, of_bias = _lstm_backward(grad_hy, grad_cy, cx, cy, workspace, biased)
    return gates, gates, of_cell, of_bias, of_bias


@kernel("_thnn_fused_gru_cell")
def _gru(
    of_input: Tensor, of_hidden: Tensor, hx: Tensor, bias: Tensor | None,
    hidden_bias: Tensor | None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """The new state, and what the backward needs: gates, the state before, its share."""
    reset, kept, offered = _biased(of_input, bias).chunk(3, 1)
    r, z, n = _biased(of_hidden, hidden_bias).chunk(3, 1)
    reset, kept = (reset + r).sigmoid(), (kept + z).sigmoid()
    offered = (offered + reset * n).tanh()
    before = _wide(hx)
    hy = offered + kept * (before - offered)
    workspace = torch.cat((reset, kept, offered, before, n), 1)
    return hy.to(hx.dtype), workspace.to(hx.dtype)


@kernel("_thnn_fused_gru_cell_backward")
def _gru_backward(
    grad_hy: Tensor, workspace: Tensor, biased: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor | None]:
    reset, kept, offered, before, n = _wide(workspace).chunk(5, 1)
    grad = _wide(grad_hy)
    of_kept = grad * (before - offered) * (1 - kept) * kept
    of_offered = grad * (1 - kept) * (1 - offered * offered)
    of_reset = of_offered * n * (1 - reset) * reset
    dtype = workspace.dtype
    of_input = torch.cat((of_reset, of_kept, of_offered), 1).to(dtype)
    of_hidden = torch.cat((of_reset, of_kept, of_offered * reset), 1).to(dtype)
    biases = (of_input.sum(0), of_hidden.sum(0)) if biased else (None, None)
    return of_input, of_hidden, (grad * kept).to(dtype), *biases
