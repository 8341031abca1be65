"""Counts, in a process with a seat, what a step of each optimizer and scheduler asks of the broker.

    python traffic.py OUT

Writes JSON: by case the round trips of a step that ends with `loss.item()`, those of a
step that does not, and the different programs that a step in the steady state consists of.
"""

import json
import sys
from pathlib import Path

import torch.nn.functional as F

sys.path.insert(0, str(Path(__file__).parent))

from cases_optimizers import OPTIMIZERS, SCHEDULERS, small_batches, small_net

from jgpu.device import current

WARM_UP, STEPS = 10, 8


class Loop:
    """A training loop, a step at a time."""

    def __init__(self, optimizer, scheduler=None):
        self.net = small_net("cuda")
        self.batches = small_batches("cuda", WARM_UP + 2 * STEPS)
        self.optimizer = optimizer(self.net.parameters())
        self.scheduler = scheduler and scheduler(self.optimizer)

    def step(self):
        x, y = self.batches.pop()
        self.optimizer.zero_grad()
        loss = F.cross_entropy(self.net(x), y)
        loss.backward()
        self.optimizer.step()
        if self.scheduler:
            self.scheduler.step()
        return loss


def counted(loop):
    """The figures of a loop."""
    session = current.session
    for _ in range(WARM_UP):
        loop.step().item()
    before, trips, loss = session.outbox.position[1], session.round_trips, None
    for _ in range(STEPS):
        loss = loop.step()
    streamed = session.round_trips - trips
    loss.item()
    trips = session.round_trips
    for _ in range(STEPS):
        loop.step().item()
    with_item = session.round_trips - trips
    programs = {cut.compiled.hash for work, cut in session.outbox.runs if work > before}
    ops = sum(len(cut.lines) for work, cut in session.outbox.runs if work > before) / (2 * STEPS)
    return {
        "with_item": with_item / STEPS,
        "streamed": streamed / STEPS,
        "programs": len(programs),
        "ops": ops,
    }


def main(out):
    """Count all."""
    found = {name: counted(Loop(make)) for name, make in OPTIMIZERS.items()}
    for name, make in SCHEDULERS.items():
        found[name] = counted(Loop(OPTIMIZERS["sgd_momentum"], make))
    Path(out).write_text(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1])
