"""A tiny network that sees all its data at each step; its loss is looked at now and then."""

import torch
from torch import nn
from torch.nn.functional import mse_loss

__all__ = ["PERIOD", "Program"]

#: steps between two looks at the loss
PERIOD = 50


class Program:
    """One step of Adam over 200 points."""

    def __init__(self, device: str) -> None:
        self._net = nn.Sequential(
            nn.Linear(1, 16), nn.Tanh(), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 1)
        ).to(device)
        x = torch.linspace(-3, 3, 200).unsqueeze(1)
        self._x, self._y = x.to(device), torch.sin(x).to(device)
        self._optimizer = torch.optim.Adam(self._net.parameters(), 1e-2)
        self._steps, self.losses = 0, [0.0]

    def step(self) -> torch.Tensor:
        loss = mse_loss(self._net(self._x), self._y)
        self._optimizer.zero_grad()
        loss.backward()
        self._optimizer.step()
        self._steps += 1
        if self._steps % PERIOD == 0:
            self.losses[0] = loss.item()
        return loss
