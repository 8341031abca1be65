"""`_cudnn_rnn`, its backward, and the state that its dropout draws from.

Weights are read from the one buffer alone, as cuDNN reads them. What the backward needs lies in the
reserve: seed and offset of the masks, then for each layer and direction its output and what its
steps saved. Halves are computed in float32, and rounded where cuDNN returns them.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor

from jgpu.broker.executor.devices.onhost.kernels.drawing.launches import increment, numbers
from jgpu.broker.executor.devices.onhost.kernels.philox import Philox, uniforms
from jgpu.broker.executor.devices.onhost.kernels.recurrent.cells import (
    Steps,
    Swept,
    run_back,
    run_forward,
    saved_width,
)
from jgpu.broker.executor.devices.onhost.kernels.recurrent.packing import (
    Layers,
    Weights,
    gradients,
    packed,
    unpacked,
)
from jgpu.broker.executor.devices.onhost.kernels.tables import kernel

__all__: list[str] = []

#: a word for each thread of the GPU; the first two of int64 are seed and offset
_STATE_BYTES: Final = 132 * 2048 * 4
_HEADER_BYTES: Final = 16
#: what an offset may be: not below 0, and a multiple of 4
_OFFSETS: Final = (1 << 63) - 4


@kernel("_cudnn_init_dropout_state")
def _init_dropout_state(dropout: float, train: bool, seed: int, *options: Any) -> Tensor:
    if not train or dropout == 0:
        raise RuntimeError("dropout must be nonzero; otherwise call set_no_dropout")
    state = torch.zeros(_STATE_BYTES, dtype=torch.uint8)
    state[:_HEADER_BYTES].view(torch.int64)[0] = seed
    return state


@dataclass(frozen=True, slots=True)
class _Recurrence:
    """One call: its layers, its rows, and how its input lies."""

    layers: Layers
    sizes: tuple[int, ...]
    batch_first: bool
    dropout: float
    is_packed: bool
    dtype: torch.dtype

    @property
    def wide(self) -> torch.dtype:
        """The type of the computation."""
        return torch.float64 if self.dtype is torch.float64 else torch.float32

    def rows(self, tensor: Tensor) -> Tensor:
        """A sequence as rows, step after step."""
        by_step = tensor.transpose(0, 1) if self.batch_first and not self.is_packed else tensor
        return by_step.reshape(-1, tensor.shape[-1]).to(self.wide)

    def sequence(self, rows: Tensor) -> Tensor:
        """The same back, laid out as cuDNN lays it out: step after step."""
        rows = rows.to(self.dtype)
        if self.is_packed:
            return rows
        by_step = rows.view(len(self.sizes), self.sizes[0], rows.shape[1])
        return by_step.transpose(0, 1) if self.batch_first else by_step

    def width(self) -> int:
        """Elements of a row of any layer's output."""
        return self.layers.shown * self.layers.directions

    def masks(self, draw: Philox) -> list[Tensor | None]:
        """What each layer's output is multiplied by before the next one sees it."""
        between = self.layers.layers - 1
        count = sum(self.sizes) * self.width()
        found: list[Tensor | None] = []
        for _ in range(between if self.dropout else 0):
            kept = numbers(draw, count, uniforms) < 1 - self.dropout
            scale = 0.0 if self.dropout == 1 else 1 / (1 - self.dropout)
            found.append(kept.view(-1, self.width()).to(self.wide) * scale)
            draw = draw.after(increment(count))
        return [*found, *[None] * (self.layers.layers - len(found))]

    def moved(self) -> int:
        """What its masks move the offset on by."""
        between = self.layers.layers - 1 if self.dropout else 0
        return between * increment(sum(self.sizes) * self.width())

    def reserved(self) -> list[tuple[int, int]]:
        """Shapes in the reserve after its header: of output and saved, for each place."""
        rows = sum(self.sizes)
        each = saved_width(self.layers.mode, self.layers.hidden)
        return [(rows, self.layers.shown), (rows, each)] * self.layers.count


def _described(
    sequence: Tensor, mode: int, hidden: int, projection: int, layers: int, batch_first: bool,
    dropout: float, train: bool, bidirectional: bool, batch_sizes: Sequence[int],
) -> _Recurrence:  # fmt: skip
    described = Layers(mode, sequence.shape[-1], hidden, projection, layers, 1 + bidirectional)
    sizes = tuple(int(size) for size in batch_sizes)
    if not sizes:
        first, second = sequence.shape[:2]
        sizes = (first,) * second if batch_first else (second,) * first
    return _Recurrence(
        described, sizes, batch_first, dropout if train else 0.0, bool(batch_sizes), sequence.dtype
    )


def _wide(weights: Weights, dtype: torch.dtype) -> Weights:
    return Weights(*(None if each is None else each.to(dtype) for each in weights))  # type: ignore[arg-type]


@kernel("_cudnn_rnn")
def _cudnn_rnn(
    sequence: Tensor, weights: Sequence[Tensor], each: int, buffer: Tensor | None, hx: Tensor,
    cx: Tensor | None, mode: int, hidden: int, projection: int, layers: int, batch_first: bool,
    dropout: float, train: bool, bidirectional: bool, batch_sizes: Sequence[int],
    dropout_state: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    run = _described(
        sequence, mode, hidden, projection, layers, batch_first, dropout, train, bidirectional,
        batch_sizes,
    )  # fmt: skip
    if buffer is None:
        buffer = packed(weights, each, run.layers)
    draw = _drawn(run, dropout_state)
    swept, last = _forward(run, run.rows(sequence), buffer, hx, cx, run.masks(draw))
    output = run.sequence(last)
    hy = torch.stack([found.hidden for found in swept]).to(run.dtype)
    cells = [found.cell for found in swept if found.cell is not None]
    cy = torch.stack(cells).to(run.dtype) if cells else hx.new_empty(0)
    reserve = torch.empty(0, dtype=torch.uint8)
    if train:
        head = torch.tensor([draw.seed, draw.offset]).view(torch.uint8)
        parts = [part.reshape(-1).view(torch.uint8) for f in swept for part in (f.output, f.saved)]
        reserve = torch.cat([head, *parts])
    return output, hy, cy, reserve, buffer


def _read(state: Tensor) -> Philox:
    """Seed and offset at the head of a tensor of bytes; any bytes are some."""
    seed, offset = state[:_HEADER_BYTES].clone().view(torch.int64).tolist()
    return Philox(seed, offset & _OFFSETS)


def _drawn(run: _Recurrence, state: Tensor | None) -> Philox:
    """Where this call's masks are drawn from; moves the state on for the next one."""
    if not run.dropout:
        return Philox(0, 0)
    if state is None:
        raise RuntimeError("dropout between layers needs a dropout state")
    draw = _read(state)
    head = state[:_HEADER_BYTES].view(torch.int64)
    head[1] += run.moved()
    return draw


def _forward(
    run: _Recurrence, rows: Tensor, buffer: Tensor, hx: Tensor, cx: Tensor | None,
    masks: Sequence[Tensor | None],
) -> tuple[list[Swept], Tensor]:  # fmt: skip
    """What each layer makes in each direction, and the rows of the last one's output."""
    weights = [_wide(each, run.wide) for each in unpacked(buffer, run.layers)]
    swept: list[Swept] = []
    for layer in range(run.layers.layers):
        outputs = []
        for direction in range(run.layers.directions):
            place = layer * run.layers.directions + direction
            cell = None if cx is None else cx[place].to(run.wide)
            found = run_forward(
                run.layers.mode, Steps(run.sizes, direction == 1), rows, weights[place],
                hx[place].to(run.wide), cell,
            )  # fmt: skip
            swept.append(found)
            outputs.append(found.output)
        mask = masks[layer]
        rows = torch.cat(outputs, 1) if mask is None else torch.cat(outputs, 1) * mask
    return swept, rows


@kernel("_cudnn_rnn_backward")
def _cudnn_rnn_backward(
    sequence: Tensor, weights: Sequence[Tensor], each: int, buffer: Tensor, hx: Tensor,
    cx: Tensor | None, output: Tensor, grad_output: Tensor | None, grad_hy: Tensor | None,
    grad_cy: Tensor | None, mode: int, hidden: int, projection: int, layers: int,
    batch_first: bool, dropout: float, train: bool, bidirectional: bool,
    batch_sizes: Sequence[int], dropout_state: Tensor | None, reserve: Tensor,
    wanted: Sequence[bool],
) -> tuple[Tensor | None, Tensor | None, Tensor | None, list[Tensor]]:  # fmt: skip
    if grad_output is None and grad_hy is None and grad_cy is None:
        return None, None, None, []
    if not train:
        raise RuntimeError("cudnn RNN backward can only be called in training mode")
    run = _described(
        sequence, mode, hidden, projection, layers, batch_first, dropout, train, bidirectional,
        batch_sizes,
    )  # fmt: skip
    draw, swept = _reserved(run, reserve)
    into = torch.zeros(buffer.numel(), dtype=run.wide)
    rows = torch.zeros_like(output) if grad_output is None else grad_output
    states = torch.zeros_like(hx) if grad_hy is None else grad_hy
    cells = cx if cx is None else torch.zeros_like(cx) if grad_cy is None else grad_cy
    grads = run.rows(rows), states.to(run.wide), None if cells is None else cells.to(run.wide)
    of_rows, of_hx, of_cx = _backward(run, sequence, buffer, (hx, cx), draw, swept, grads, into)
    listed = gradients(into.to(run.dtype), each, run.layers) if wanted[3] else []
    of_cell = None if of_cx is None else of_cx.to(run.dtype)
    return run.sequence(of_rows), of_hx.to(run.dtype), of_cell, listed


def _reserved(run: _Recurrence, reserve: Tensor) -> tuple[Philox, list[tuple[Tensor, Tensor]]]:
    """What the forward wrote into the reserve: its draw, output and saved of each place."""
    shapes = run.reserved()
    needed = _HEADER_BYTES + sum(map(math.prod, shapes)) * run.wide.itemsize
    if reserve.numel() != needed:
        raise RuntimeError(f"the reserve has {reserve.numel()} bytes, {needed} are needed")
    flat = reserve[_HEADER_BYTES:].clone().view(run.wide)
    parts = flat.split([math.prod(shape) for shape in shapes])
    found = [part.view(shape) for part, shape in zip(parts, shapes, strict=True)]
    return _read(reserve), list(zip(found[::2], found[1::2], strict=True))


def _backward(
    run: _Recurrence, sequence: Tensor, buffer: Tensor, first: tuple[Tensor, Tensor | None],
    draw: Philox, swept: list[tuple[Tensor, Tensor]],
    grads: tuple[Tensor, Tensor, Tensor | None], into: Tensor,
) -> tuple[Tensor, Tensor, Tensor | None]:  # fmt: skip
    """Gradients of the input's rows and of the first states; adds the weights' to `into`."""
    weights = [_wide(each, run.wide) for each in unpacked(buffer, run.layers)]
    sums, masks = unpacked(into, run.layers), run.masks(draw)
    (hx, cx), (grad_rows, grad_hy, grad_cy) = first, grads
    of_hx, of_cx = (
        torch.empty_like(grad_hy),
        None if cx is None else torch.empty_like(cx, dtype=run.wide),
    )
    for layer in reversed(range(run.layers.layers)):
        mask = masks[layer]
        grad_rows = grad_rows if mask is None else grad_rows * mask
        rows = run.rows(sequence)
        both = slice((layer - 1) * run.layers.directions, layer * run.layers.directions)
        if layer:
            rows = torch.cat([output for output, _ in swept[both]], 1)
            before = masks[layer - 1]
            rows = rows if before is None else rows * before
        parts = grad_rows.split(run.layers.shown, 1)
        grad_rows = torch.zeros_like(rows)
        for direction in range(run.layers.directions):
            place = layer * run.layers.directions + direction
            made = Swept(*swept[place], grad_hy[place], None)
            cell = None if cx is None else cx[place].to(run.wide)
            of_rows, of_state, of_cell = run_back(
                run.layers.mode, Steps(run.sizes, direction == 1), rows, weights[place],
                (hx[place].to(run.wide), cell), made,
                (parts[direction], grad_hy[place], None if grad_cy is None else grad_cy[place]),
                sums[place],
            )  # fmt: skip
            grad_rows += of_rows
            of_hx[place] = of_state
            if of_cx is not None and of_cell is not None:
                of_cx[place] = of_cell
    return grad_rows, of_hx, of_cx
