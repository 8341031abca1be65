"""Trains a small model, the same lesson again and again, and writes down each loss that it reads.

    python trainer.py KIND DEVICE FILE [ROUNDS]

A lesson makes a new model and trains it for `STEPS` steps. Each line of the file holds a loss in
hexadecimal, when it was there (seconds of the host's monotonic clock), and for how long it was
waited for: from the beginning of the steps that it comes from. Ends after so many lessons, or in
the midst of one at the first line on standard input.
"""

import select
import sys
import time
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F

STEPS = 60


class Recurrent(nn.Module):
    """Says for each word of a sentence which one comes next."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(50, 16)
        self.layers = nn.LSTM(16, 24, num_layers=2, dropout=0.3, batch_first=True)
        self.head = nn.Linear(24, 50)

    def forward(self, words):
        """Scores by sentence, class and place."""
        return self.head(self.layers(self.embedding(words))[0]).transpose(1, 2)


def dense():
    """A perceptron, its data, its optimizer; the loss is read after each step."""
    model = nn.Sequential(
        nn.Linear(64, 128), nn.ReLU(), nn.Dropout(0.2), nn.Linear(128, 128), nn.Tanh(),
        nn.Dropout(0.5), nn.Linear(128, 10),
    )  # fmt: skip
    data = torch.randn(256, 64), torch.randint(10, (256,))
    return model, data, lambda own: torch.optim.SGD(own, lr=0.1, momentum=0.9), 1


def convolutional():
    """A network for images; the losses of five steps are read together."""
    model = nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2),
        nn.Dropout2d(0.25), nn.Conv2d(8, 16, 3), nn.ReLU(), nn.Flatten(), nn.Linear(400, 10),
    )  # fmt: skip
    data = torch.randn(64, 1, 14, 14), torch.randint(10, (64,))
    return model, data, lambda own: torch.optim.Adam(own, lr=1e-3), 5


def recurrent():
    """A network for sentences, whose gradients are clipped; the loss is read after each step."""
    words = torch.randint(50, (16, 13))
    data = words[:, :-1].contiguous(), words[:, 1:].contiguous()
    return Recurrent(), data, lambda own: torch.optim.AdamW(own, lr=1e-2), 1


KINDS = {"dense": dense, "convolutional": convolutional, "recurrent": recurrent}


def lesson(kind, device):
    """Train a new model; yields the losses that are read together, and how long they took."""
    torch.manual_seed(7)
    model, (x, y), optimizer_of, together = KINDS[kind]()
    model, x, y = model.to(device), x.to(device), y.to(device)
    optimizer = optimizer_of(model.parameters())
    torch.manual_seed(11)  # dropout's, wherever it is drawn
    for _ in range(0, STEPS, together):
        began, losses = time.monotonic(), []
        for _ in range(together):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            if kind == "recurrent":
                nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
            losses.append(loss.detach())
        read = [loss.item()] if together == 1 else torch.stack(losses).tolist()
        yield read, time.monotonic() - began


def main(kind, device, path, rounds=0):
    """Go on until told to stop."""
    torch.set_num_threads(1)
    done = 0
    with Path(path).open("w", buffering=1) as file:
        while not rounds or done < int(rounds):
            for losses, waited_s in lesson(kind, device):
                now = time.monotonic()
                file.writelines(f"{loss.hex()} {now:.6f} {waited_s:.6f}\n" for loss in losses)
                if not rounds and select.select([sys.stdin], [], [], 0)[0]:
                    return
            done += 1


if __name__ == "__main__":
    main(*sys.argv[1:])
