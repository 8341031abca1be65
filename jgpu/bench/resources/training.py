"""Training steps timed natively and on the shared device, in turn, in one process with a seat.

    python training.py overhead '{"target_ms": 10, "threads": 1, "pairs": 15, "block_s": 0.3}'

A model is an ordinary one; its batch is chosen so that a native step takes about `target_ms`. Each
pair is a block of native steps and a block of steps on the device, the order turning from pair to
pair; every step ends with `loss.item()`, and a third block per pair leaves it out. Prints one line
of JSON.
"""

import json
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from jgpu.device import current

#: a model, its inputs and its labels
Made = tuple[nn.Module, torch.Tensor, torch.Tensor]
Maker = Callable[[int], Made]

WARM_UP = 12
MOST_STEPS = 400


def small_mlp(batch: int) -> Made:
    """Two hidden layers under Adam: about 67 ops a step, a millisecond at batch 256."""
    net = nn.Sequential(
        nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 10)
    )
    return net, torch.randn(batch, 64), torch.randint(0, 10, (batch,))


def cnn(batch: int) -> Made:
    """Two convolutions with batch norm on 8x8 images."""
    net = nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU(), nn.Flatten(),
        nn.Linear(64 * 16, 10),
    )  # fmt: skip
    return net, torch.randn(batch, 1, 8, 8), torch.randint(0, 10, (batch,))


MODELS: dict[str, Maker] = {"mlp": small_mlp, "cnn": cnn}


class Training:
    """A model with its optimizer and one batch on a device."""

    def __init__(self, make: Maker, batch: int, device: str) -> None:
        torch.manual_seed(0)
        self.net, x, y = make(batch)
        self.net.to(device)
        self.x, self.y = x.to(device), y.to(device)
        self.optimizer = torch.optim.Adam(self.net.parameters(), 1e-3)

    def step(self) -> torch.Tensor:
        """One iteration; its loss stays on the device."""
        self.optimizer.zero_grad()
        loss = cross_entropy(self.net(self.x), self.y)
        loss.backward()
        self.optimizer.step()
        return loss

    def block(self, steps: int, *, wait: bool = True) -> float:
        """Seconds per step."""
        begin = time.perf_counter()
        for _ in range(steps):
            loss = self.step()
            if wait:
                loss.item()
        if not wait:
            loss.item()
        return (time.perf_counter() - begin) / steps


def batch_for(make: Maker, target_ms: float) -> int:
    """The batch at which a native step takes about `target_ms`."""
    batch = 64
    for _ in range(4):
        training = Training(make, batch, "cpu")
        training.block(WARM_UP if target_ms < 5 else 2)
        took_ms = 1e3 * min(training.block(3) for _ in range(3))
        if abs(took_ms / target_ms - 1) < 0.1:
            break
        batch = max(8, round(batch * target_ms / took_ms / 8) * 8)
    return batch


def overhead(
    model: str, target_ms: float, threads: int, pairs: int, block_s: float, batch: int = 0
) -> dict[str, Any]:
    """Times of each pair in milliseconds, and what a step cost on the way."""
    torch.set_num_threads(threads)
    make = MODELS[model]
    batch = batch or batch_for(make, target_ms)
    native, device = Training(make, batch, "cpu"), Training(make, batch, "cuda")
    for training in (native, device):
        training.block(WARM_UP)
        training.block(WARM_UP, wait=False)
    steps = min(MOST_STEPS, max(3, round(block_s / native.block(3))))
    rows = []
    for k in range(pairs):
        row = {}
        for name in ("native", "device", "streamed")[:: 1 if k % 2 else -1]:
            training = native if name == "native" else device
            row[f"{name}_ms"] = 1e3 * training.block(steps, wait=name != "streamed")
        rows.append(row)
    found = {"model": model, "batch": batch, "threads": threads, "steps": steps, "pairs": rows}
    return found | {"target_ms": target_ms, **_traffic(device), **_same(make, batch)}


def _traffic(device: Training, steps: int = 50) -> dict[str, Any]:
    """Round trips, bytes and ops of a repeated step, with and without `loss.item()`."""
    session = current.session
    found = {}
    for name, wait in (("item", True), ("streamed", False)):
        torch.cuda.synchronize()
        trips, sent = session.round_trips, session.connection.bytes_sent
        device.block(steps, wait=wait)
        torch.cuda.synchronize()
        extra = 1 if wait else 2  # the wait at the end of a block, and the one just above
        found[f"round_trips_{name}"] = (session.round_trips - trips - extra) / steps
        found[f"bytes_{name}"] = (session.connection.bytes_sent - sent) / steps
    return found | {"ops": ops_of(device.step)}


def ops_of(function: Callable[[], Any]) -> int:
    """Ops that a call records."""
    session = current.session
    torch.cuda.synchronize()
    before = session.outbox.runs[-1][0]
    function()
    torch.cuda.synchronize()
    return sum(len(cut.lines) for work, cut in session.outbox.runs if work > before)


def _same(make: Maker, batch: int) -> dict[str, bool]:
    """Whether both learn the same, bit for bit."""
    losses = []
    for device in ("cpu", "cuda"):
        training = Training(make, batch, device)
        losses.append([training.step().item() for _ in range(3)])
    return {"bit_identical": losses[0] == losses[1]}


if __name__ == "__main__":
    print(json.dumps(globals()[sys.argv[1]](**json.loads(sys.argv[2]))))
