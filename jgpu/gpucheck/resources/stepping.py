"""Does what it is told, a line each, and answers with times: training steps, chains of ops, reads.

    python stepping.py HOW

"make MODEL BATCH" first, and "drop" last; between them "block STEPS", "stream STEPS",
"train SECONDS". At any time "events STEPS", "chain OPS ROUNDS", "items COUNT", "lookups SECONDS",
"cold COUNT".
"""

import json
import sys
import time
from typing import Any

import place
import torch
import torch.nn.functional as F
from models import MODELS

WARM_UP = 12


class Stepper:
    """A model, and what can be timed."""

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def make(self, model: str, batch: str) -> dict[str, Any]:
        """A model under Adam, warmed up; the time of a step."""
        place.seed(0)
        with place.host():
            self.net, examples = MODELS[model]()
            x, y = examples(int(batch))
        self.net.to(self.device)
        self.x, self.y = x.to(self.device), y.to(self.device)
        self.optimizer = torch.optim.Adam(self.net.parameters(), 1e-3, foreach=True)
        self.block(str(WARM_UP))
        return self.block("3")

    def drop(self) -> dict[str, Any]:
        """Give model and batch up."""
        del self.net, self.x, self.y, self.optimizer
        torch.cuda.empty_cache()
        return {}

    def step(self) -> torch.Tensor:
        """One iteration."""
        self.optimizer.zero_grad()
        loss = F.cross_entropy(self.net(self.x), self.y)
        loss.backward()
        self.optimizer.step()
        return loss

    def block(self, steps: str) -> dict[str, Any]:
        """Steps whose losses are read; seconds of each, and the last loss."""
        begin = time.perf_counter()
        for _ in range(int(steps)):
            loss = float(self.step().item())
        return {"s": (time.perf_counter() - begin) / int(steps), "loss": loss.hex()}

    def stream(self, steps: str) -> dict[str, Any]:
        """Steps of which only the last loss is read."""
        begin = time.perf_counter()
        for _ in range(int(steps)):
            loss = self.step()
        loss.item()
        return {"s": (time.perf_counter() - begin) / int(steps)}

    def train(self, seconds: str) -> dict[str, Any]:
        """Steps for so long."""
        until, steps = time.perf_counter() + float(seconds), 0
        while time.perf_counter() < until:
            self.step().item()
            steps += 1
        return {"steps": steps}

    def events(self, steps: str) -> dict[str, Any]:
        """A product between two events; milliseconds by the events."""
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        a = torch.ones(2048, 2048, device=self.device)
        found = []
        for _ in range(int(steps)):
            begin.record()
            for _ in range(10):
                a @ a
            end.record()
            end.synchronize()
            found.append(begin.elapsed_time(end))
        return {"ms": sorted(found)[len(found) // 2]}

    def chain(self, ops: str, rounds: str) -> dict[str, Any]:
        """Launches a second, of small ops behind each other."""
        x = torch.ones(64, device=self.device)
        best = 0.0
        for _ in range(int(rounds)):
            begin = time.perf_counter()
            for _ in range(5):
                y = x
                for _ in range(int(ops)):
                    y = y * 1.0
            y.sum().item()
            best = max(best, 5 * int(ops) / (time.perf_counter() - begin))
        return {"ops": best}

    def items(self, count: str) -> dict[str, Any]:
        """Microseconds until a value that was just asked for is there: median and p99."""
        x, found = torch.ones(64, device=self.device), []
        for _ in range(int(count)):
            begin = time.perf_counter()
            x.sum().item()
            found.append(1e6 * (time.perf_counter() - begin))
        found.sort()
        return {"median": found[len(found) // 2], "p99": found[int(0.99 * (len(found) - 1))]}

    def lookups(self, seconds: str) -> dict[str, Any]:
        """What makes the host wait in its midst, for so long."""
        x, until, count = torch.ones(1 << 20, device=self.device), time.time() + float(seconds), 0
        while time.time() < until:
            x.nonzero().numel()
            torch.linalg.inv(torch.eye(32, device=self.device)).sum().item()
            count += 1
        return {"lookups": count}

    def cold(self, count: str) -> dict[str, Any]:
        """Convolutions of shapes that nobody has had, under a switch of their own."""
        with torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=True):
            for k in range(int(count)):
                x = torch.ones(1, 3 + k, 9 + k, 9 + k, device=self.device)
                kernel = torch.ones(5, 3 + k, 3, 3, device=self.device)
                F.conv2d(x, kernel).sum().item()
        return {"convolutions": int(count)}


def main() -> None:
    """Until the input ends."""
    torch.set_num_threads(1)
    with place.computing(sys.argv[1]) as device:
        stepper = Stepper(device)
        for line in sys.stdin:
            name, *arguments = line.split()
            print(json.dumps(getattr(stepper, name)(*arguments)), flush=True)


if __name__ == "__main__":
    main()
