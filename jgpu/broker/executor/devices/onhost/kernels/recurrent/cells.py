"""One recurrent layer in one direction: every step forward, and every step back.

A sequence is rows, step after step: of step t the samples 0 to sizes[t], which never become more.
What the forward saves of a row the backward reads: gates after their functions, and the cell.
Everything is computed in the type that it is given.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from jgpu.broker.executor.devices.onhost.kernels.recurrent.packing import (
    GRU,
    LSTM,
    RELU,
    Weights,
)

__all__ = ["Steps", "Swept", "run_back", "run_forward", "saved_width"]


def saved_width(mode: int, hidden: int) -> int:
    """Elements that the forward saves of a row."""
    return {LSTM: 5, GRU: 4}.get(mode, 1) * hidden


@dataclass(frozen=True, slots=True)
class Steps:
    """The order in which a direction goes through the rows."""

    sizes: Sequence[int]
    reverse: bool

    def places(self) -> list[tuple[int, int]]:
        """First row and rows of each step, in the order of going."""
        found, first = [], 0
        for size in self.sizes:
            found.append((first, size))
            first += size
        return found[::-1] if self.reverse else found

    def before(self, rows: Tensor, first: Tensor) -> Tensor:
        """For every row that of its sample one step before, or of `first`, (samples, width)."""
        made, state = torch.empty_like(rows), first.clone()
        for place, size in self.places():
            made[place : place + size] = state[:size]
            state[:size] = rows[place : place + size]
        return made


@dataclass(slots=True)
class Swept:
    """What one layer in one direction makes: rows, and the last states of the samples."""

    #: (rows, shown)
    output: Tensor
    #: (rows, `saved_width`)
    saved: Tensor
    #: (samples, shown), and (samples, hidden) of LSTMs
    hidden: Tensor
    cell: Tensor | None


def run_forward(
    mode: int, steps: Steps, rows: Tensor, weights: Weights, hidden: Tensor, cell: Tensor | None
) -> Swept:
    """All steps, from the states that are given."""
    of_input = rows @ weights.of_input.t() + weights.bias_of_input
    width = saved_width(mode, weights.of_state.shape[0] // {LSTM: 4, GRU: 3}.get(mode, 1))
    state, memory = hidden.clone(), None if cell is None else cell.clone()
    made = Swept(
        rows.new_empty(rows.shape[0], state.shape[1]), rows.new_empty(rows.shape[0], width),
        state, memory,
    )  # fmt: skip
    for place, size in steps.places():
        now = slice(place, place + size)
        of_state = state[:size] @ weights.of_state.t() + weights.bias_of_state
        shown, saved = _step(mode, of_input[now], of_state, state[:size], memory, weights)
        made.output[now], made.saved[now] = shown, saved
        state[:size] = shown
    return made


def _step(
    mode: int, of_input: Tensor, of_state: Tensor, state: Tensor, cell: Tensor | None,
    weights: Weights,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """The new state and what is saved of it; writes the cell."""
    if mode == LSTM:
        assert cell is not None
        entered, forgot, offered, shown = (of_input + of_state).chunk(4, 1)
        entered, forgot, shown = entered.sigmoid(), forgot.sigmoid(), shown.sigmoid()
        offered = offered.tanh()
        held = forgot * cell[: state.shape[0]] + entered * offered
        cell[: state.shape[0]] = held
        made = shown * held.tanh()
        saved = torch.cat((entered, forgot, offered, shown, held), 1)
        return made if weights.projection is None else made @ weights.projection.t(), saved
    if mode == GRU:
        (reset, kept, offered), (r, z, n) = of_input.chunk(3, 1), of_state.chunk(3, 1)
        reset, kept = (reset + r).sigmoid(), (kept + z).sigmoid()
        offered = (offered + reset * n).tanh()
        return offered + kept * (state - offered), torch.cat((reset, kept, offered, n), 1)
    made = (of_input + of_state).relu() if mode == RELU else (of_input + of_state).tanh()
    return made, made


def run_back(
    mode: int, steps: Steps, rows: Tensor, weights: Weights, first: tuple[Tensor, Tensor | None],
    made: Swept, grads: tuple[Tensor, Tensor, Tensor | None], into: Weights,
) -> tuple[Tensor, Tensor, Tensor | None]:  # fmt: skip
    """Gradients of the rows and of the first states, from those of output and last states.

    Adds the gradients of the weights to `into`. `made` lacks the last states.
    """
    grad_rows, grad_state, grad_cell = grads[0], grads[1].clone(), grads[2]
    grad_cell = None if grad_cell is None else grad_cell.clone()
    states = steps.before(made.output, first[0])
    cells = None
    if first[1] is not None:
        cells = steps.before(made.saved[:, -first[1].shape[1] :], first[1])
    of_input = rows.new_empty(rows.shape[0], weights.of_input.shape[0])
    of_state = torch.empty_like(of_input)
    for place, size in reversed(steps.places()):
        now = slice(place, place + size)
        grad = grad_state[:size] + grad_rows[now]
        saved = made.saved[now]
        if mode == LSTM:
            assert cells is not None
            assert grad_cell is not None
            _back_lstm(grad, saved, cells[now], grad_cell[:size], weights, into, of_input[now])
            of_state[now] = of_input[now]
            grad_state[:size] = of_state[now] @ weights.of_state
        elif mode == GRU:
            direct = _back_gru(grad, saved, states[now], of_input[now], of_state[now])
            grad_state[:size] = direct + of_state[now] @ weights.of_state
        else:
            slope = saved > 0 if mode == RELU else 1 - saved * saved
            of_input[now] = of_state[now] = grad * slope
            grad_state[:size] = of_state[now] @ weights.of_state
    into.of_input.add_(of_input.t() @ rows)
    into.of_state.add_(of_state.t() @ states)
    into.bias_of_input.add_(of_input.sum(0))
    into.bias_of_state.add_(of_state.sum(0))
    return of_input @ weights.of_input, grad_state, grad_cell


def _back_lstm(
    grad: Tensor, saved: Tensor, before: Tensor, grad_cell: Tensor, weights: Weights,
    into: Weights, gates: Tensor,
) -> None:  # fmt: skip
    """Writes the gradients of the gates, and of the cell a step before."""
    entered, forgot, offered, shown, held = saved.chunk(5, 1)
    known = held.tanh()
    if weights.projection is not None:
        assert into.projection is not None
        into.projection.add_(grad.t() @ (shown * known))
        grad = grad @ weights.projection
    of_cell = grad_cell + grad * shown * (1 - known * known)
    grad_cell.copy_(of_cell * forgot)
    parts = (
        of_cell * offered * entered * (1 - entered),
        of_cell * before * forgot * (1 - forgot),
        of_cell * entered * (1 - offered * offered),
        grad * known * shown * (1 - shown),
    )
    torch.cat(parts, 1, out=gates)


def _back_gru(
    grad: Tensor, saved: Tensor, before: Tensor, of_input: Tensor, of_state: Tensor
) -> Tensor:
    """Writes the gradients of the gates; returns what goes past them to the state before."""
    reset, kept, offered, n = saved.chunk(4, 1)
    of_offered = grad * (1 - kept) * (1 - offered * offered)
    of_kept = grad * (before - offered) * kept * (1 - kept)
    of_reset = of_offered * n * reset * (1 - reset)
    torch.cat((of_reset, of_kept, of_offered), 1, out=of_input)
    torch.cat((of_reset, of_kept, of_offered * reset), 1, out=of_state)
    return grad * kept
