"""Recurrent layers of cuDNN: one op for all layers, both directions and the whole sequence.

What cuDNN is given as (address, bytes) it compares with what it needs: weights, workspace, reserve
and the state of dropout. Of everything else it knows the sizes from the arguments alone, so these
must agree here.
"""

from typing import Final

import torch

from jgpu.broker.executor.programs.contracts.language import Call, contract

__all__: list[str] = []

#: Gates by cuDNN's number of the cell: relu, tanh, lstm, gru.
_GATES: Final = (1, 1, 4, 3)
_LSTM: Final = 2
_TYPES: Final = (torch.float32, torch.float64, torch.float16, torch.bfloat16)


@contract("_cudnn_init_dropout_state")
def _dropout_state(call: Call) -> None:
    call.require(0.0 <= call["dropout"] <= 1.0, "dropout is not a probability")
    call.require(call["dtype"] is torch.uint8, "its state is of bytes")


@contract("_cudnn_rnn")
def _forward(call: Call) -> None:
    _layers(call)


@contract("_cudnn_rnn_backward")
def _backward(call: Call) -> None:
    output, hidden, cell = _layers(call)
    call.require(call["train"], "cudnn RNN backward can only be called in training mode")
    for name, shape in (
        ("output", output),
        ("grad_output", output),
        ("grad_hy", hidden),
        ("grad_cy", cell),
    ):
        call.shaped(name, shape)
        call.typed(name, call["input"].dtype)
    given = [call[name] is not None for name in ("grad_output", "grad_hy", "grad_cy")]
    call.require(any(given), "no gradient is given")
    call.require(call["cx"] is not None or not given[2], "there is no cell state")
    call.dense("output")  # its strides are not told, nor how it was transposed
    reserve, wanted = call["reserve"], call["output_mask"]
    call.require(reserve is not None and reserve.dim() == 1, "reserve is missing")
    call.typed("reserve", torch.uint8)
    call.contiguous("reserve")
    call.require(len(wanted) == 4, "output_mask has four places")
    call.require(call["cx"] is not None or not wanted[2], "there is no cell state")


def _layers(call: Call) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """Shapes of output, hidden and cell state; looks at all that forward and backward need."""
    sequence, mode = call["input"], call["mode"]
    hidden, projection = call["hidden_size"], call["proj_size"]
    layers, directions = call["num_layers"], 2 if call["bidirectional"] else 1
    call.require(0 <= mode < len(_GATES), "mode is no cell")
    call.require(hidden > 0 and 0 < layers <= 512, "a layer is empty")
    call.require(0 <= projection < hidden, "its projection is not smaller than its state")
    call.require(not projection or mode == _LSTM, "only LSTMs have projections")
    call.require(0.0 <= call["dropout"] <= 1.0, "dropout is not a probability")
    call.require(sequence.dtype in _TYPES, "its type is not served")
    steps, batch, leading = _sequence(call)
    width, shown = sequence.shape[-1], projection or hidden
    call.require(min(steps, batch, width) > 0, "an empty sequence is not served")
    _weights(call, width, shown, layers * directions)
    states = (layers * directions, batch, shown), (layers * directions, batch, hidden)
    call.shaped("hx", states[0])
    call.require((call["cx"] is not None) == (mode == _LSTM), "only LSTMs have cell states")
    call.shaped("cx", states[1])
    call.contiguous("hx", "cx")
    for name in ("hx", "cx"):
        call.typed(name, sequence.dtype)
    _state_of_dropout(call)
    return (*leading, shown * directions), *states


def _sequence(call: Call) -> tuple[int, int, tuple[int, ...]]:
    """Steps, largest batch, and the dimensions of the input before its features."""
    sequence, sizes = call["input"], [int(size) for size in call["batch_sizes"]]
    if not sizes:
        call.require(sequence.dim() == 3, "input must have three dimensions")
        first, second = sequence.shape[:2]
        steps, batch = (second, first) if call["batch_first"] else (first, second)
        return steps, batch, (first, second)
    call.require(sequence.dim() == 2, "packed input must have two dimensions")
    falling = sizes == sorted(sizes, reverse=True) and sizes[-1] > 0
    call.require(falling, "batch_sizes must not rise and be above 0")
    call.require(sum(sizes) == sequence.shape[0], "batch_sizes are not those of the input")
    return len(sizes), sizes[0], (sequence.shape[0],)


def _weights(call: Call, width: int, shown: int, count: int) -> None:
    """Each layer's matrices, biases and projection, and the one buffer that cuDNN reads."""
    weights, each, hidden = call["weight"], call["weight_stride0"], call["hidden_size"]
    rows = _GATES[call["mode"]] * hidden
    projected = 1 if call["proj_size"] else 0
    call.require(each - projected in (2, 4), "weight_stride0 is wrong")
    call.require(len(weights) == each * count, f"{each * count} weights are needed")
    needed, directions = 0, 2 if call["bidirectional"] else 1
    for place in range(count):
        features = width if place < directions else shown * directions
        wanted: list[tuple[int, ...]] = [(rows, features), (rows, shown)]
        if each - projected == 4:
            wanted += [(rows,), (rows,)]
        if projected:
            wanted.append((shown, hidden))
        for weight, shape in zip(weights[place * each :], wanted, strict=False):
            call.require(tuple(weight.shape) == shape, f"a weight has not the shape {list(shape)}")
            call.require(weight.dtype is call["input"].dtype, "a weight has another type")
        needed += rows * (features + shown + 2) + projected * shown * hidden
    buffer = call["weight_buf"]
    call.require(buffer is not None and buffer.dim() == 1, "weight_buf is missing")
    call.contiguous("weight_buf")
    call.typed("weight_buf", call["input"].dtype)
    call.require(buffer.numel() >= needed, f"weight_buf has fewer than {needed} elements")


def _state_of_dropout(call: Call) -> None:
    """Without one where one is needed the op raises: dropout may be a run parameter."""
    state = call["dropout_state"]
    if state is not None:
        call.require(state.dim() == 1, "dropout_state is of bytes in a row")
        call.typed("dropout_state", torch.uint8)
        call.contiguous("dropout_state")
