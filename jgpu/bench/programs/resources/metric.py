"""A classifier whose loss and accuracy are added up at each step, as tutorials do."""

import torch
from torch import nn
from torch.nn.functional import cross_entropy

__all__ = ["PERIOD", "Program"]

PERIOD = 10
_BATCH, _BATCHES = 64, 10


class Program:
    """One batch: a step of SGD, and how many it got right."""

    def __init__(self, device: str) -> None:
        self._net = nn.Sequential(nn.Linear(28, 128), nn.ReLU(), nn.Linear(128, 10)).to(device)
        self._x = torch.randn(_BATCH * _BATCHES, 28).to(device)
        self._y = torch.randint(0, 10, (_BATCH * _BATCHES,)).to(device)
        self._optimizer = torch.optim.SGD(self._net.parameters(), 0.1, momentum=0.9)
        self._at, self.loss, self.right = 0, 0.0, 0

    def step(self) -> torch.Tensor:
        rows = slice(self._at * _BATCH, (self._at + 1) * _BATCH)
        self._at = (self._at + 1) % _BATCHES
        x, y = self._x[rows], self._y[rows]
        said = self._net(x)
        loss = cross_entropy(said, y)
        self._optimizer.zero_grad()
        loss.backward()
        self._optimizer.step()
        self.loss += loss.item() * len(x)
        self.right += int((said.argmax(1) == y).sum().item())
        return loss
