"""A neural differential equation, solved by an adaptive Runge-Kutta method (Dormand and Prince).

Time, step and error are tensors, as in libraries of solvers, so two questions are asked a step:
whether the end is reached, and whether the step counts.
"""

import torch
from torch import nn

__all__ = ["PERIOD", "Program"]

PERIOD = 25
_NODES = (
    (1 / 5,),
    (3 / 40, 9 / 40),
    (44 / 45, -56 / 15, 32 / 9),
    (19372 / 6561, -25360 / 2187, 64448 / 6561, -212 / 729),
    (9017 / 3168, -355 / 33, 46732 / 5247, 49 / 176, -5103 / 18656),
    (35 / 384, 0.0, 500 / 1113, 125 / 192, -2187 / 6784, 11 / 84),
)
_ERRORS = (
    71 / 57600, 0.0, -71 / 16695, 71 / 1920, -17253 / 339200, 22 / 525, -1 / 40,
)  # fmt: skip


class Program:
    """One tried step of the solver; it begins anew where the end is reached."""

    def __init__(self, device: str) -> None:
        self._slope = nn.Sequential(nn.Linear(2, 50), nn.Tanh(), nn.Linear(50, 2)).to(device)
        self._start = torch.tensor([[2.0, 0.0]], device=device).repeat(16, 1)
        self._end = torch.tensor(25.0, device=device)
        self._begin()

    def _begin(self) -> None:
        self._y = self._start
        self._t, self._dt = torch.zeros_like(self._end), torch.full_like(self._end, 0.1)
        with torch.no_grad():
            self._first = self._slope(self._y**3)

    @torch.no_grad()
    def step(self) -> torch.Tensor:
        if self._t >= self._end:
            self._begin()
        slopes, y = [self._first], self._y
        for weights in _NODES:
            weighed = sum(
                (slope * weight for slope, weight in zip(slopes, weights, strict=True) if weight),
                torch.zeros_like(y),
            )
            y = self._y + self._dt * weighed
            slopes.append(self._slope(y**3))
        error = self._dt * sum(
            (slope * weight for slope, weight in zip(slopes, _ERRORS, strict=True) if weight),
            torch.zeros_like(y),
        )
        tolerance = 1e-5 + 1e-4 * torch.max(self._y.abs(), y.abs())
        ratio = (error / tolerance).pow(2).mean().sqrt()
        if ratio <= 1:
            self._y, self._first, self._t = y, slopes[-1], self._t + self._dt
        self._dt = self._dt * (0.9 * ratio.pow(-0.2)).clamp(0.2, 10.0)
        return ratio
