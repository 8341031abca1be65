"""A small adversarial pair: two optimizers, and the figures that are printed at each step."""

import torch
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits as loss_of

__all__ = ["PERIOD", "Program"]

PERIOD = 10
_BATCH, _NOISE = 64, 16


class Program:
    """The one learns to tell, then the other to deceive."""

    def __init__(self, device: str) -> None:
        self._maker = nn.Sequential(nn.Linear(_NOISE, 32), nn.ReLU(), nn.Linear(32, 2)).to(device)
        self._judge = nn.Sequential(nn.Linear(2, 32), nn.LeakyReLU(0.2), nn.Linear(32, 1))
        self._judge.to(device)
        self._making = torch.optim.Adam(self._maker.parameters(), 1e-3, betas=(0.5, 0.999))
        self._judging = torch.optim.Adam(self._judge.parameters(), 1e-3, betas=(0.5, 0.999))
        self._real = (torch.randn(_BATCH, 2) * 0.3 + 1.0).to(device)
        self._yes = torch.ones(_BATCH, 1, device=device)
        self._no = torch.zeros(_BATCH, 1, device=device)
        self._device = device
        self.printed = (0.0, 0.0, 0.0)

    def step(self) -> torch.Tensor:
        self._judging.zero_grad()
        said = self._judge(self._real)
        real = loss_of(said, self._yes)
        real.backward()
        made = self._maker(torch.randn(_BATCH, _NOISE, device=self._device))
        fake = loss_of(self._judge(made.detach()), self._no)
        fake.backward()
        self._judging.step()
        self._making.zero_grad()
        deceived = loss_of(self._judge(made), self._yes)
        deceived.backward()
        self._making.step()
        self.printed = ((real + fake).item(), deceived.item(), said.mean().item())
        return deceived
