"""LSTM cells in a Python loop over a sequence, trained by SGD."""

import torch
from torch import nn
from torch.nn.functional import mse_loss

__all__ = ["PERIOD", "Program"]

PERIOD = 10
_BATCH, _STEPS, _WIDTH = 16, 10, 32


class Program:
    """One pass over the sequence, forward and back."""

    def __init__(self, device: str) -> None:
        self._cell, self._head = nn.LSTMCell(4, _WIDTH).to(device), nn.Linear(_WIDTH, 1).to(device)
        self._x = torch.randn(_STEPS, _BATCH, 4).to(device)
        self._y = torch.randn(_BATCH, 1).to(device)
        self._device = device
        weights = [*self._cell.parameters(), *self._head.parameters()]
        self._optimizer = torch.optim.SGD(weights, 0.05)

    def step(self) -> torch.Tensor:
        h = torch.zeros(_BATCH, _WIDTH, device=self._device)
        c = torch.zeros(_BATCH, _WIDTH, device=self._device)
        for x in self._x:
            h, c = self._cell(x, (h, c))
        loss = mse_loss(self._head(h), self._y)
        self._optimizer.zero_grad()
        loss.backward()
        self._optimizer.step()
        return loss
