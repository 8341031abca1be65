"""Logistic regression whose weights are distributed: a draw and its evidence bound each step.

`torch.distributions` looks at what it is given, which are questions to the device.
"""

import torch
from torch.distributions import Bernoulli, Normal, kl_divergence
from torch.nn.functional import softplus

__all__ = ["PERIOD", "Program"]

PERIOD = 10
_PEOPLE, _TRAITS = 200, 8


class Program:
    """One step of Adam on means and spreads."""

    def __init__(self, device: str) -> None:
        x = torch.randn(_PEOPLE, _TRAITS)
        y = (x @ torch.randn(_TRAITS) > 0).float()
        self._x, self._y = x.to(device), y.to(device)
        self._mean = torch.zeros(_TRAITS, device=device, requires_grad=True)
        self._spread = torch.full((_TRAITS,), -2.0, device=device, requires_grad=True)
        self._prior = Normal(
            torch.zeros(_TRAITS, device=device), torch.ones(_TRAITS, device=device)
        )
        self._optimizer = torch.optim.Adam([self._mean, self._spread], 0.02)

    def step(self) -> torch.Tensor:
        self._optimizer.zero_grad()
        believed = Normal(self._mean, softplus(self._spread))
        weights = believed.rsample()
        likelihood = Bernoulli(logits=self._x @ weights).log_prob(self._y).sum()
        loss: torch.Tensor = kl_divergence(believed, self._prior).sum() - likelihood
        loss.backward()
        self._optimizer.step()
        return loss
