"""Eight ordinary models, small enough for any device, each with a batch of made-up data.

Each maker takes the batch, by which the time of a training step is chosen (`training.batch_for`).
"""

import torch
from torch import nn
from training import Made, Maker, cnn, small_mlp

__all__ = ["MODELS"]


class _Last(nn.Module):
    """A recurrent network's output at the last step."""

    def __init__(self, net: nn.Module, width: int) -> None:
        super().__init__()
        self.net, self.head = net, nn.Linear(width, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.head(self.net(x)[0][:, -1])
        return out


class _Residual(nn.Module):
    """Two layers around which the input goes."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.Linear(width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = x + self.layers(x)
        return out


class _Mean(nn.Module):
    """The mean over a sequence."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.mean(1)


def _labels(batch: int) -> torch.Tensor:
    return torch.randint(0, 10, (batch,))


def lstm(batch: int) -> Made:
    """A sequence of 12 steps."""
    net = _Last(nn.LSTM(16, 48, batch_first=True), 48)
    return net, torch.randn(batch, 12, 16), _labels(batch)


def gru(batch: int) -> Made:
    """Two layers, a sequence of 8 steps."""
    net = _Last(nn.GRU(24, 32, 2, batch_first=True), 32)
    return net, torch.randn(batch, 8, 24), _labels(batch)


def transformer(batch: int) -> Made:
    """One layer over 16 tokens."""
    layer = nn.TransformerEncoderLayer(48, 4, 96, dropout=0.0, batch_first=True)
    net = nn.Sequential(layer, _Mean(), nn.Linear(48, 10))
    return net, torch.randn(batch, 16, 48), _labels(batch)


def residual(batch: int) -> Made:
    """Four residual blocks."""
    net = nn.Sequential(*(_Residual(96) for _ in range(4)), nn.Linear(96, 10))
    return net, torch.randn(batch, 96), _labels(batch)


def embedding(batch: int) -> Made:
    """Words, their mean, two layers."""
    net = nn.Sequential(
        nn.Embedding(2000, 32), _Mean(), nn.Linear(32, 128), nn.Tanh(), nn.Linear(128, 10)
    )
    return net, torch.randint(0, 2000, (batch, 20)), _labels(batch)


def signal(batch: int) -> Made:
    """Two convolutions over a signal of 64 samples."""
    net = nn.Sequential(
        nn.Conv1d(2, 24, 5, padding=2), nn.ReLU(), nn.Conv1d(24, 24, 5, stride=2, padding=2),
        nn.ReLU(), nn.Flatten(), nn.Linear(24 * 32, 10),
    )  # fmt: skip
    return net, torch.randn(batch, 2, 64), _labels(batch)


MODELS: dict[str, Maker] = {
    "cnn": cnn,
    "mlp": small_mlp,
    "lstm": lstm,
    "gru": gru,
    "transformer": transformer,
    "residual": residual,
    "embedding": embedding,
    "signal": signal,
}
