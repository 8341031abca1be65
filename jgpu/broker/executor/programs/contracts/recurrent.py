"""Fused recurrent layers, which trust shape and layout of everything."""

from functools import lru_cache
from typing import Any, Final

import torch

from jgpu.broker.executor.programs.contracts.language import Call, contract

__all__: list[str] = []

#: Gates by the cell's number in aten: relu, tanh, lstm, gru.
_GATES: Final = {0: 1, 1: 1, 2: 4, 3: 3}


def _layer(call: Call, weights: tuple[str, ...], state: tuple[str, str]) -> tuple[int, ...]:
    """One layer, one direction: steps, batch, features, hidden size."""
    call.require(call["input"].dim() == 3, "input must have three dimensions")
    steps, batch, features = call["input"].shape
    hidden = call["hidden_size"]
    call.require(call["mode"] == 2 and hidden > 0, "only LSTM layers are served")
    call.require(min(steps, batch, features) > 0, "an empty sequence is not served")
    rows = _GATES[call["mode"]] * hidden
    shapes: list[tuple[int, ...]] = [(rows, features), (rows, hidden)]
    if call["has_biases"]:  # else torch fills their places with what the kernel never reads
        shapes += [(rows,), (rows,)]
    weights = weights[: len(shapes)]
    for name, shape in zip(weights, shapes, strict=True):
        call.shaped(name, shape)
    for name in state:
        tensor = call[name]
        fits = tensor.numel() == batch * hidden and tensor.shape[-2:] == (batch, hidden)
        call.require(fits, f"{name} is not a state of the batch")
    call.contiguous("input", *weights, *state)
    for name in ("input", *weights, *state):
        call.typed(name, call["input"].dtype)
    call.require(call["input"].dtype in (torch.float32, torch.bfloat16), "its type is not served")
    call.require(not call["batch_sizes"], "packed sequences are not served")
    return steps, batch, features, hidden


@contract("mkldnn_rnn_layer")
def _mkldnn(call: Call) -> None:
    _layer(call, ("weight0", "weight1", "weight2", "weight3"), ("hx_", "cx_"))


@contract("mkldnn_rnn_layer_backward")
def _mkldnn_backward(call: Call) -> None:
    names = ("weight1", "weight2", "weight3", "weight4")
    steps, batch, features, hidden = _layer(call, names, ("hx_", "cx_tmp"))
    dtype = call["input"].dtype
    for name in ("output", "grad_output"):
        call.shaped(name, (steps, batch, hidden))
        call.typed(name, dtype)
    call.contiguous("output", "hy_", "cy_", "workspace")
    for name in ("hy_", "cy_", "grad_hy", "grad_cy"):
        if call[name] is not None:
            call.require(call[name].numel() == batch * hidden, f"{name} has a wrong size")
            call.typed(name, dtype)
    plain = (call["reverse"], call["num_layers"], call["bidirectional"], call["train"])
    nbytes = _workspace(steps, batch, features, hidden, dtype, plain)
    found = call["workspace"].numel() * call["workspace"].element_size()
    call.require(found == nbytes, f"the workspace has {found} bytes, {nbytes} are needed")


def _cell(call: Call, gates: int, state: str) -> None:
    """A fused cell: gates of one width, a state, biases for all gates or none."""
    call.require(call[state].dim() == 2, f"{state} must be a matrix")
    batch, hidden = call[state].shape
    for name in ("input_gates", "hidden_gates"):
        call.shaped(name, (batch, gates * hidden))
        call.typed(name, call[state].dtype)
    call.channels(gates * hidden, "input_bias", "hidden_bias")
    for name in ("input_bias", "hidden_bias"):
        call.typed(name, call[state].dtype)
    given = [call[name] is not None for name in ("input_bias", "hidden_bias")]
    call.require(given[0] == given[1], "biases come together")


@contract("_thnn_fused_lstm_cell", without_meta=True)
def _lstm_cell(call: Call) -> None:
    _cell(call, 4, "cx")


@contract("_thnn_fused_gru_cell", without_meta=True)
def _gru_cell(call: Call) -> None:
    _cell(call, 3, "hx")


@contract("_thnn_fused_lstm_cell_backward_impl")
def _lstm_cell_backward(call: Call) -> None:
    call.require(call["cx"].dim() == 2, "cx must be a matrix")
    batch, hidden = call["cx"].shape
    for name in ("grad_hy", "grad_cy", "cy"):
        call.same(name, "cx")
        call.typed(name, call["cx"].dtype)
    call.shaped("workspace", (batch, 4 * hidden))
    call.typed("workspace", call["cx"].dtype)
    call.contiguous("workspace")


@contract("_thnn_fused_gru_cell_backward", without_meta=True)
def _gru_cell_backward(call: Call) -> None:
    call.require(call["grad_hy"].dim() == 2, "grad_hy must be a matrix")
    batch, hidden = call["grad_hy"].shape
    call.shaped("workspace", (batch, 5 * hidden))
    call.typed("workspace", call["grad_hy"].dtype)
    call.contiguous("workspace")


@lru_cache(maxsize=256)
def _workspace(
    steps: int, batch: int, features: int, hidden: int, dtype: torch.dtype, plain: tuple[Any, ...]
) -> int:
    """Bytes that the forward kernel really saves; its meta kernel does not know."""
    reverse, layers, bidirectional, train = plain
    rows = 4 * hidden
    tensors = [
        torch.zeros(shape, dtype=dtype)
        for shape in (
            *((steps, batch, features), (rows, features), (rows, hidden), (rows,), (rows,)),
            *((batch, hidden), (batch, hidden)),
        )
    ]
    with torch.enable_grad():  # without it the kernel saves nothing
        result = torch.ops.aten.mkldnn_rnn_layer.default(
            *tensors, reverse, [], 2, hidden, layers, True, bidirectional, False, train
        )
    return int(result[3].numel() * result[3].element_size())
