"""An actor and its critic that balance a pole: one step of the environment at a time.

The environment computes on the host, so each step sends what is seen and waits for what is done.
"""

import math
import random

import torch
from torch import nn
from torch.distributions import Categorical
from torch.nn.functional import smooth_l1_loss

__all__ = ["PERIOD", "Program"]

#: environment's steps between two updates
PERIOD = 20
_DISCOUNT = 0.99


class _Pole:
    """A pole on a cart (Barto, Sutton and Anderson, 1983), pushed to the left or to the right."""

    def __init__(self) -> None:
        self._chance = random.Random(0)
        self.seen = self.reset()

    def reset(self) -> list[float]:
        self.seen = [self._chance.uniform(-0.05, 0.05) for _ in range(4)]
        return self.seen

    def step(self, action: int) -> tuple[list[float], float, bool]:
        """What is seen then, the reward, and whether the pole has fallen."""
        x, speed, angle, turning = self.seen
        force = 10.0 if action else -10.0
        cosine, sine = math.cos(angle), math.sin(angle)
        push = (force + 0.05 * turning**2 * sine) / 1.1
        fall = (9.8 * sine - cosine * push) / (0.5 * (4.0 / 3.0 - 0.1 * cosine**2 / 1.1))
        drive = push - 0.05 * fall * cosine / 1.1
        self.seen = [
            x + 0.02 * speed, speed + 0.02 * drive, angle + 0.02 * turning, turning + 0.02 * fall
        ]  # fmt: skip
        return self.seen, 1.0, abs(self.seen[0]) > 2.4 or abs(self.seen[2]) > 0.21


class _Policy(nn.Module):
    """What to do, and what it is worth."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.actor, self.critic = nn.Linear(4, 64), nn.Linear(64, 2), nn.Linear(64, 1)

    def forward(self, seen: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x = torch.relu(self.body(seen))
        return self.actor(x), self.critic(x)


class Program:
    """One step of the environment; after `PERIOD` of them the policy learns."""

    def __init__(self, device: str) -> None:
        self._device, self._pole, self._policy = device, _Pole(), _Policy().to(device)
        self._optimizer = torch.optim.Adam(self._policy.parameters(), 3e-3)
        self._said: list[tuple[torch.Tensor, torch.Tensor]] = []
        self._rewards: list[float] = []

    def step(self) -> torch.Tensor:
        logits, value = self._policy(torch.tensor(self._pole.seen, device=self._device))
        choice = Categorical(logits=logits)
        action = choice.sample()
        _, reward, fell = self._pole.step(int(action.item()))
        said: torch.Tensor = choice.log_prob(action)
        self._said.append((said, value))
        self._rewards.append(reward)
        if fell:
            self._pole.reset()
        if fell or len(self._rewards) == PERIOD:
            return self._learn()
        return said

    def _learn(self) -> torch.Tensor:
        worth: list[float] = []
        total = 0.0
        for reward in reversed(self._rewards):
            total = reward + _DISCOUNT * total
            worth.insert(0, total)
        returns = torch.tensor(worth, device=self._device)
        returns = (returns - returns.mean()) / (returns.std(correction=0) + 1e-6)
        values = torch.cat([value for _, value in self._said])
        said = torch.stack([said for said, _ in self._said])
        loss = -(said * (returns - values.detach())).sum() + smooth_l1_loss(values, returns)
        self._optimizer.zero_grad()
        loss.backward()
        self._optimizer.step()
        self._said.clear()
        self._rewards.clear()
        return loss
