"""A notebook that holds memory: a model that trains a little, and tensors that stay.

    python holder.py '{"device": "cuda", "threads": 1, "width": 1024, "kept_mb": 48, "seed": 1}'

Commands and answers are lines of JSON, as in notebook.py:

    {"do": "make"}            the model (`width` squared weights under SGD with momentum) and
                              `kept_mb` MiB of noise, which its batches are slices of
    {"do": "live", "rounds": 3, "iterations": 5, "rest_s": 1.0}
                              rounds of training and rest, then a look whether the noise is the same
    {"do": "fill", "mb": 64}  the seconds that so many MiB of zeros take; they stay until "drop"
    {"do": "touch"}           the seconds until a number computed of the noise is there
    {"do": "drop"}
"""

import hashlib
import json
import sys
import time
from typing import Any

import torch
from torch import nn

_ROWS = 32


class Holder:
    """What one notebook holds."""

    def __init__(self, device: str, width: int, kept_mb: int, seed: int) -> None:
        self._device = device
        self._width = width
        self._kept_bytes = kept_mb << 20
        self._seed = seed
        self._filled: torch.Tensor | None = None

    def make(self) -> dict[str, Any]:
        """Everything that stays."""
        begin = time.monotonic()
        torch.manual_seed(self._seed)
        noise = torch.rand(self._kept_bytes // 4)
        self._digest = _digest(noise)
        self._net = nn.Linear(self._width, self._width, bias=False).to(self._device)
        self._optimizer = torch.optim.SGD(self._net.parameters(), 1e-3, momentum=0.9)
        self._kept = noise.to(self._device)
        del noise
        self._train(1)
        return {"seconds": time.monotonic() - begin}

    def live(self, rounds: int, iterations: int, rest_s: float) -> dict[str, Any]:
        """Train and rest; what the rounds took, and whether what was kept is the same."""
        begin, took = time.monotonic(), []
        for _ in range(rounds):
            took.append(self._train(iterations))
            time.sleep(rest_s)
        equal = _digest(self._kept.cpu()) == self._digest
        return {"equal": equal, "rounds": took, "begin": begin, "end": time.monotonic()}

    def fill(self, mb: int) -> dict[str, Any]:
        """Take memory."""
        begin = time.monotonic()
        self._filled = torch.zeros(mb << 18, device=self._device)
        self._filled[:1].item()
        return {"seconds": time.monotonic() - begin}

    def touch(self) -> dict[str, Any]:
        """Use what is kept."""
        begin = time.monotonic()
        self._kept[:1].sum().item()
        return {"seconds": time.monotonic() - begin}

    def drop(self) -> dict[str, Any]:
        """Give back what `fill` took."""
        self._filled = None
        if self._device == "cuda":
            torch.cuda.empty_cache()  # tell of it now
        return {}

    def _train(self, iterations: int) -> float:
        begin = time.monotonic()
        size = _ROWS * self._width
        places = max(1, self._kept.numel() // size)
        for number in range(iterations):
            at = number % places * size
            batch = self._kept[at : at + size].view(-1, self._width)
            self._optimizer.zero_grad()
            loss = (self._net(batch) - batch).square().mean()
            loss.backward()
            self._optimizer.step()
        loss.item()
        return time.monotonic() - begin


def _digest(noise: torch.Tensor) -> str:
    return hashlib.blake2b(noise.numpy()).hexdigest()  # type: ignore[arg-type]


def main(options: dict[str, Any]) -> None:
    """Serve until nobody asks any more."""
    torch.set_num_threads(options.pop("threads"))
    holder = Holder(**options)
    torch.zeros(1, device=options["device"]).item()  # it is there from now on
    _say({"ready": True})
    for line in sys.stdin:
        command = json.loads(line)
        _say(getattr(holder, command.pop("do"))(**command))


def _say(found: dict[str, Any]) -> None:
    print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
