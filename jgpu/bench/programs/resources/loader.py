"""A `DataLoader` over tensors that are on the device: batches are put together row by row there."""

from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["PERIOD", "Program"]

_ROWS, _BATCH = 640, 32
PERIOD = _ROWS // _BATCH


class Program:
    """One batch of a linear classifier; the loader is gone through again and again."""

    def __init__(self, device: str) -> None:
        x, y = torch.randn(_ROWS, 20), torch.randint(0, 5, (_ROWS,))
        data = TensorDataset(x.to(device), y.to(device))
        self._loader: DataLoader[Any] = DataLoader(data, batch_size=_BATCH, shuffle=True)
        self._batches: Iterator[Any] = iter(())
        self._net = nn.Linear(20, 5).to(device)
        self._optimizer = torch.optim.SGD(self._net.parameters(), 0.1)

    def step(self) -> torch.Tensor:
        batch = next(self._batches, None)
        if batch is None:
            self._batches = iter(self._loader)
            batch = next(self._batches)
        x, y = batch
        loss = cross_entropy(self._net(x), y)
        self._optimizer.zero_grad()
        loss.backward()
        self._optimizer.step()
        return loss
