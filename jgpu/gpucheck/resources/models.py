"""Models whose steps are timed, each with its batches: what a class trains, small to large."""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

#: a model, and examples with labels, by their count
Timed = tuple[nn.Module, Callable[[int], tuple[Tensor, Tensor]]]

CLASSES = 10
#: what a model of texts sees
WORDS, LENGTH = 64, 64
#: side of a large picture
SIDE = 224


def mlp() -> Timed:
    """Two hidden layers."""
    net = nn.Sequential(
        nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, CLASSES)
    )
    return net, _labelled(64)


def cnn() -> Timed:
    """Convolutions with batch norm."""
    net = nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU(), nn.Flatten(),
        nn.Linear(64 * 16, CLASSES),
    )  # fmt: skip
    return net, _labelled(1, 8, 8)


def gpt() -> Timed:
    """A decoder of four layers, which foretells the next token at every place."""
    net = _Decoder(width=128, heads=4, layers=4)
    return net, lambda count: (
        torch.randint(0, WORDS, (count, LENGTH)),
        torch.randint(0, WORDS, (count, LENGTH)),
    )


def resnet50() -> Timed:
    """Residual blocks of three convolutions each (He et al. 2016, table 1), on large pictures."""
    return _residual(), _labelled(3, SIDE, SIDE)


MODELS: dict[str, Callable[[], Timed]] = {"mlp": mlp, "cnn": cnn, "gpt": gpt, "resnet50": resnet50}


def _labelled(*shape: int) -> Callable[[int], tuple[Tensor, Tensor]]:
    return lambda count: (torch.randn(count, *shape), torch.randint(0, CLASSES, (count,)))


class _Decoder(nn.Module):
    def __init__(self, width: int, heads: int, layers: int) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, width)
        self.places = nn.Parameter(torch.zeros(LENGTH, width))
        self.blocks = nn.Sequential(*(_Block(width, heads) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, WORDS)

    def forward(self, tokens: Tensor) -> Any:
        """Scores, (count, words, places)."""
        x = self.blocks(self.words(tokens) + self.places)
        return self.head(self.norm(x)).transpose(1, 2)


class _Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.ask, self.tell = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.wide = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: Tensor) -> Any:
        count, places, width = x.shape
        asked = self.ask(self.before(x)).view(count, places, 3, self.heads, -1)
        query, key, value = asked.permute(2, 0, 3, 1, 4)
        seen = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.tell(seen.transpose(1, 2).reshape(count, places, width))
        return x + self.wide(self.between(x))


def _residual() -> nn.Module:
    layers: list[nn.Module] = [
        *_convolution(3, 64, 7, stride=2), nn.ReLU(), nn.MaxPool2d(3, stride=2, padding=1)
    ]  # fmt: skip
    come = 64
    for stage, blocks in enumerate((3, 4, 6, 3)):
        for block in range(blocks):
            stride = 2 if stage and not block else 1
            layers.append(_Bottleneck(come, 64 << stage, stride))
            come = 256 << stage
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(come, CLASSES)]
    return nn.Sequential(*layers)


def _convolution(come: int, go: int, size: int, stride: int = 1) -> list[nn.Module]:
    kernel = nn.Conv2d(come, go, size, stride=stride, padding=size // 2, bias=False)
    return [kernel, nn.BatchNorm2d(go)]


class _Bottleneck(nn.Module):
    def __init__(self, come: int, width: int, stride: int) -> None:
        super().__init__()
        self.long = nn.Sequential(
            *_convolution(come, width, 1), nn.ReLU(),
            *_convolution(width, width, 3, stride), nn.ReLU(),
            *_convolution(width, 4 * width, 1),
        )  # fmt: skip
        same = stride == 1 and come == 4 * width
        self.short = nn.Sequential(*([] if same else _convolution(come, 4 * width, 1, stride)))

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.long(x) + self.short(x))
