"""Trains models and prints what of them is compared: every loss, and all weights and gradients.

    python identity.py HOW GROUP SCALE STEPS

By model: the losses as hexadecimal numbers and digests of weights and gradients, or its error.
"""

import traceback
from collections.abc import Callable
from typing import Any

import place
import torch
import torch.nn.functional as F
from torch import Tensor, nn

#: a model, batches by number, the loss of a batch, an optimizer of its parameters
Made = tuple[nn.Module, Callable[[int], tuple[Tensor, ...]], Callable[..., Tensor], Any]
Model = Callable[[torch.device, int], Made]
MODELS: dict[str, dict[str, Model]] = {}


def model(group: str, name: str) -> Callable[[Model], Model]:
    """Add a model to a group."""

    def add(function: Model) -> Model:
        MODELS.setdefault(group, {})[name] = function
        return function

    return add


def labelled(device: torch.device, shape: tuple[int, ...], classes: int) -> Any:
    """Batches of numbers with labels, the same for everybody, sent anew for each step."""

    def batch(step: int) -> tuple[Tensor, Tensor]:
        draw = torch.Generator().manual_seed(100 + step)
        with place.host():
            x = torch.randn(shape, generator=draw)
            y = torch.randint(0, classes, (shape[0],), generator=draw)
        return x.to(device), y.to(device)

    return batch


def tokens(device: torch.device, rows: int, columns: int, words: int) -> Any:
    """Batches of texts."""

    def batch(step: int) -> tuple[Tensor]:
        with place.host():
            draw = torch.Generator().manual_seed(200 + step)
            found = torch.randint(0, words, (rows, columns), generator=draw)
        return (found.to(device),)

    return batch


def classify(net: nn.Module) -> Callable[..., Tensor]:
    """Cross entropy of what a net says."""
    return lambda x, y: F.cross_entropy(net(x), y)


# -- dense ---------------------------------------------------------------------------------------


def mlp(scale: int, *between: nn.Module) -> nn.Sequential:
    """Two hidden layers."""
    width = 24 * scale
    return nn.Sequential(
        nn.Linear(20, width), *between, nn.ReLU(), nn.Linear(width, width), nn.GELU(),
        nn.Linear(width, 10),
    )  # fmt: skip


@model("dense", "MLP, Adam foreach")
def _(device: torch.device, scale: int) -> Made:
    net = mlp(scale)
    adam = lambda p: torch.optim.Adam(p, 1e-2, foreach=True)  # noqa: E731
    return net, labelled(device, (16 * scale, 20), 10), classify(net), adam


@model("dense", "MLP, Adam fused")
def _(device: torch.device, scale: int) -> Made:
    net = mlp(scale)
    adam = lambda p: torch.optim.AdamW(p, 1e-2, fused=True)  # noqa: E731
    return net, labelled(device, (16 * scale, 20), 10), classify(net), adam


@model("dense", "layer norm and dropout, SGD")
def _(device: torch.device, scale: int) -> Made:
    net = mlp(scale, nn.LayerNorm(24 * scale), nn.Dropout(0.3))
    sgd = lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, foreach=True)  # noqa: E731
    return net, labelled(device, (16 * scale, 20), 10), classify(net), sgd


@model("dense", "embedding bag")
def _(device: torch.device, scale: int) -> Made:
    words = 50 * scale
    net = nn.Sequential(nn.EmbeddingBag(words, 8, mode="sum"), nn.Linear(8, words))
    loss = lambda x: F.cross_entropy(net(x), x[:, 0])  # noqa: E731
    sgd = lambda p: torch.optim.SGD(p, 0.1, foreach=True)  # noqa: E731
    return net, tokens(device, 8 * scale, 6, words), loss, sgd


# -- images --------------------------------------------------------------------------------------


def convolutional(width: int) -> nn.Sequential:
    """Two convolutions with batch norm."""
    return nn.Sequential(
        nn.Conv2d(3, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU(),
        nn.MaxPool2d(2), nn.Conv2d(width, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU(),
        nn.Flatten(), nn.Linear(width * 16, 10),
    )  # fmt: skip


class Residual(nn.Module):
    """A block as those of ResNet-18."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.a = nn.Conv2d(width, width, 3, 1, 1, bias=False)
        self.n = nn.BatchNorm2d(width)
        self.b = nn.Conv2d(width, width, 3, 1, 1, bias=False)
        self.m = nn.BatchNorm2d(width)

    def forward(self, x: Tensor) -> Tensor:
        """The same shape."""
        y = F.relu(self.n(self.a(x)), inplace=True)
        return F.relu(self.m(self.b(y)) + x)


def momentum(parameters: Any) -> Any:
    """The optimizer of the images."""
    return torch.optim.SGD(parameters, 0.05, momentum=0.9, foreach=True)


@model("images", "convolutions and batch norm")
def _(device: torch.device, scale: int) -> Made:
    net = convolutional(8 * scale)
    return net, labelled(device, (8 * scale, 3, 8, 8), 10), classify(net), momentum


@model("images", "channels last")
def _(device: torch.device, scale: int) -> Made:
    net: Any = convolutional(8 * scale)
    net = net.to(memory_format=torch.channels_last)
    plain = labelled(device, (8 * scale, 3, 8, 8), 10)

    def batch(step: int) -> tuple[Tensor, Tensor]:
        x, y = plain(step)
        return x.to(memory_format=torch.channels_last), y

    return net, batch, classify(net), momentum


@model("images", "residual blocks")
def _(device: torch.device, scale: int) -> Made:
    width = 8 * scale
    net = nn.Sequential(
        nn.Conv2d(3, width, 3, 1, 1), Residual(width), Residual(width), nn.AvgPool2d(8),
        nn.Flatten(), nn.Linear(width, 10),
    )  # fmt: skip
    return net, labelled(device, (4 * scale, 3, 8, 8), 10), classify(net), momentum


@model("images", "group norm, transposed")
def _(device: torch.device, scale: int) -> Made:
    net = nn.Sequential(
        nn.Conv2d(3, 8, 3, 2, 1), nn.GroupNorm(2, 8), nn.SiLU(),
        nn.ConvTranspose2d(8, 4, 2, 2), nn.Flatten(), nn.Linear(4 * 64, 10),
    )  # fmt: skip
    return net, labelled(device, (4 * scale, 3, 8, 8), 10), classify(net), momentum


# -- recurrent -----------------------------------------------------------------------------------


class LastState(nn.Module):
    """A recurrent layer, and a sum over what it says."""

    def __init__(self, layer: nn.Module, width: int) -> None:
        super().__init__()
        self.layer, self.out = layer, nn.Linear(width, 5)

    def forward(self, x: Tensor) -> Tensor:
        """Logits of each sequence."""
        logits: Tensor = self.out(self.layer(x)[0].mean(1))
        return logits


def recurrent(kind: Any, **how: Any) -> Model:
    """A model around such a layer."""

    def make(device: torch.device, scale: int) -> Made:
        # dropout between the layers is drawn by cuDNN alone
        options = how | ({"dropout": 0.2} if scale > 1 and how.get("num_layers", 1) > 1 else {})
        layer = kind(6, 8 * scale, batch_first=True, **options)
        net = LastState(layer, 8 * scale * (1 + bool(how.get("bidirectional"))))
        adam = lambda p: torch.optim.Adam(p, 1e-2, foreach=True)  # noqa: E731
        return net, labelled(device, (4 * scale, 7, 6), 5), classify(net), adam

    return make


model("recurrent", "LSTM")(recurrent(nn.LSTM))
model("recurrent", "LSTM, both ways, two layers")(
    recurrent(nn.LSTM, num_layers=2, bidirectional=True)
)
model("recurrent", "GRU")(recurrent(nn.GRU, num_layers=2))
model("recurrent", "RNN")(recurrent(nn.RNN, nonlinearity="tanh"))


# -- attention -----------------------------------------------------------------------------------


class Block(nn.Module):
    """Attention and an MLP, as GPT has them."""

    def __init__(self, width: int, heads: int, dropout: float, mask: str) -> None:
        super().__init__()
        self.heads, self.p, self.mask = heads, dropout, mask
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.mix, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width), nn.Dropout(dropout)
        )

    def forward(self, x: Tensor) -> Tensor:
        """The same shape."""
        parts = self.mix(self.before(x)).chunk(3, -1)
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in parts)
        steps, mask = x.shape[1], None
        if self.mask == "mask":
            mask = torch.ones(steps, steps, dtype=torch.bool, device=x.device).tril()
        p, causal = self.p if self.training else 0.0, self.mask == "causal"
        y = F.scaled_dot_product_attention(q, k, v, mask, p, causal)
        x = x + self.out(y.transpose(1, 2).flatten(2))
        made: Tensor = x + self.mlp(self.between(x))
        return made


class Language(nn.Module):
    """A small GPT."""

    def __init__(self, words: int, width: int, heads: int, dropout: float, mask: str) -> None:
        super().__init__()
        self.table = nn.Embedding(words, width)
        self.blocks = nn.Sequential(*(Block(width, heads, dropout, mask) for _ in range(2)))
        self.out = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, words))

    def forward(self, x: Tensor) -> Tensor:
        """Logits of each next word."""
        logits: Tensor = self.out(self.blocks(self.table(x)))
        return logits


def language(mask: str, dropout: float = 0.1, dtype: torch.dtype = torch.float32) -> Model:
    """A model around it."""

    def make(device: torch.device, scale: int) -> Made:
        net = Language(11, 16 * scale, 2, dropout, mask).to(dtype)

        def loss(x: Tensor) -> Tensor:
            return F.cross_entropy(net(x[:, :-1]).float().flatten(0, 1), x[:, 1:].flatten())

        adam = lambda p: torch.optim.AdamW(p, 1e-2, foreach=True)  # noqa: E731
        # as many steps as an efficient mask must have to lie well
        return net, tokens(device, 2 * scale, 9, 11), loss, adam

    return make


model("attention", "causal")(language("causal"))
model("attention", "mask")(language("mask"))
model("attention", "none, no dropout")(language("none", 0.0))


# -- mixed: CUDA's own precisions, which the host has no eager form of ----------------------------


def cast(make: Model, dtype: torch.dtype) -> Model:
    """The same under autocast."""

    def within(device: torch.device, scale: int) -> Made:
        net, batch, loss, optimizer = make(device, scale)

        def casting(*arguments: Tensor) -> Tensor:
            with torch.autocast("cuda", dtype=dtype):
                return loss(*arguments)

        return net, batch, casting, optimizer

    return within


HALF, BRAIN = torch.float16, torch.bfloat16
model("mixed", "GPT in bfloat16")(language("causal", 0.1, BRAIN))
model("mixed", "GPT in float16 with a mask")(language("mask", 0.1, HALF))
model("mixed", "GPT, autocast to bfloat16")(cast(language("causal"), BRAIN))
model("mixed", "convolutions, autocast and scaled")(
    cast(MODELS["images"]["convolutions and batch norm"], HALF)
)
model("mixed", "LSTM, autocast")(cast(recurrent(nn.LSTM), HALF))


def train(
    make: Model, device: torch.device, scale: int, steps: int, *, scaled: bool
) -> dict[str, Any]:
    """What of it is compared."""
    place.seed(5)
    with place.host():
        net, batch, loss_of, optimizer_of = make(device, scale)
    net.to(device).train()
    place.seed(6)
    optimizer = optimizer_of(net.parameters())
    scaler = torch.amp.GradScaler("cuda", enabled=scaled)
    losses = []
    for step in range(steps):
        optimizer.zero_grad()
        loss = loss_of(*batch(step))
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        losses.append(float(loss.item()).hex())
    return {
        "losses": losses,
        "weights": place.digest(*net.state_dict().values()),
        "gradients": place.digest(*(p.grad for p in net.parameters() if p.grad is not None)),
    }


def main(device: torch.device, group: str, scale: str, steps: str) -> dict[str, Any]:
    """Every model of the group."""
    found: dict[str, Any] = {}
    for name, make in MODELS[group].items():
        try:
            found[name] = train(make, device, int(scale), int(steps), scaled="scaled" in name)
        except Exception:
            found[name] = {"error": traceback.format_exc()[-1500:]}
    return found


if __name__ == "__main__":
    place.serve(main)
