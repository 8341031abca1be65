"""A Gaussian process whose kernel is fitted by the likelihood: a Cholesky factor each step."""

import math

import torch
from torch.nn.functional import softplus

__all__ = ["PERIOD", "Program"]

PERIOD = 10
_POINTS = 96


class Program:
    """One step of Adam on lengthscale, amplitude and noise."""

    def __init__(self, device: str) -> None:
        x = torch.linspace(0, 1, _POINTS).unsqueeze(1)
        y = torch.sin(x * (2 * math.pi)) + 0.2 * torch.randn(_POINTS, 1)
        self._x, self._y = x.to(device), y.to(device)
        self._raw = torch.zeros(3, device=device, requires_grad=True)
        self._optimizer = torch.optim.Adam([self._raw], 0.02)
        self._unit = torch.eye(_POINTS, device=device)

    def step(self) -> torch.Tensor:
        self._optimizer.zero_grad()
        scale, amplitude, noise = softplus(self._raw)
        distance = (self._x - self._x.T) / scale
        kernel = amplitude * torch.exp(-0.5 * distance**2) + (noise + 1e-4) * self._unit
        factor = torch.linalg.cholesky(kernel)
        weights = torch.cholesky_solve(self._y, factor)
        fit = 0.5 * (self._y * weights).sum()
        loss: torch.Tensor = (
            fit + factor.diagonal().log().sum() + 0.5 * _POINTS * math.log(2 * math.pi)
        )
        loss.backward()
        self._optimizer.step()
        return loss
