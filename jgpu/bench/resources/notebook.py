"""A notebook that trains as it is told, natively or on the shared device.

    python notebook.py '{"model": "cnn", "batch": 64, "device": "cuda", "threads": 1}'

`device` is "cpu" for a native process and "cuda" in one with a seat; `threads` 0 leaves torch's
default. Without `batch`, one is chosen so that a native step takes about `target_ms`. `core` pins
the process to that one.

Reads commands from standard input, a line of JSON each, and answers each with one:

    {"do": "train", "seconds": 5, "every": 10}
    {"do": "cells", "count": 9, "iterations": 10, "pause_s": 0.3}
    {"do": "waits", "seconds": 5}

The loss is read at each `every`-th iteration. Instead of "seconds" there may be "iterations"; "at"
says when to begin. Times are seconds of the host's monotonic clock. `"stamps": true` adds the begin
and the end of every step, `"marks": [100]` the time at which so many iterations were over. The
first line that is printed says that the notebook is ready. It ends with its standard input.
"""

import json
import os
import sys
import time
from typing import Any

import torch
from models import MODELS
from training import WARM_UP, Training, batch_for


class Notebook:
    """A model in training."""

    def __init__(self, model: str, batch: int, device: str) -> None:
        self._training = Training(MODELS[model], batch, device)
        self._device = device

    def warm_up(self) -> None:
        """Everything that happens once."""
        for wait in (True, False):
            self._training.block(WARM_UP, wait=wait)
        self._settle()

    def train(
        self,
        seconds: float = 0.0,
        iterations: int = 0,
        every: int = 10,
        at: float = 0.0,
        marks: tuple[int, ...] = (),
        *,
        stamps: bool = False,
    ) -> dict[str, Any]:
        """Train for so long, or so many iterations; all of them are over when it returns."""
        time.sleep(max(0.0, at - time.monotonic()))
        begin = time.monotonic()
        until = begin + seconds if seconds else float("inf")
        done, steps, passed = 0, [], {}
        while (not iterations or done < iterations) and time.monotonic() < until:
            began = time.monotonic()
            loss = self._training.step()
            done += 1
            if done % every == 0 or done in marks:
                loss.item()
            if done in marks:
                passed[done] = time.monotonic()
            if stamps:
                steps.append((began, time.monotonic()))
        self._settle()
        found = {"begin": begin, "end": time.monotonic(), "iterations": done, "marks": passed}
        return found | {"stamps": steps} if stamps else found

    def cells(
        self, count: int, iterations: int, pause_s: float, until_s: float = float("inf")
    ) -> dict[str, Any]:
        """Cells of so many iterations, each after a pause; none that would end after `until_s`."""
        begin, took = time.monotonic(), []
        for _ in range(count):
            time.sleep(pause_s)
            found = self.train(iterations=iterations)
            took.append((found["begin"], found["end"]))
            if 2 * found["end"] - found["begin"] - begin > until_s:
                break
        return {"cells": took}

    def waits(self, seconds: float, pause_s: float = 0.0) -> dict[str, Any]:
        """How long one waits for the sum of a small tensor; the first fifth counts for nothing."""
        time.sleep(pause_s)
        small, took = torch.rand(16, 16, device=self._device), []
        begin = time.perf_counter()
        after, until = begin + seconds / 5, begin + seconds
        while (began := time.perf_counter()) < until:
            small.sum().item()
            if began >= after:
                took.append(time.perf_counter() - began)
        return {"waits": took}

    def _settle(self) -> None:
        if self._device == "cuda":
            torch.cuda.synchronize()


def main(options: dict[str, Any]) -> None:
    """Serve until nobody asks any more."""
    if "core" in options:
        os.sched_setaffinity(0, [options["core"]])
    if options["threads"]:
        torch.set_num_threads(options["threads"])
    batch = options.get("batch") or batch_for(MODELS[options["model"]], options["target_ms"])
    notebook = Notebook(options["model"], batch, options["device"])
    notebook.warm_up()
    _say({"ready": True, "batch": batch, "threads": torch.get_num_threads()})
    for line in sys.stdin:
        command = json.loads(line)
        _say(getattr(notebook, command.pop("do"))(**command))


def _say(found: dict[str, Any]) -> None:
    print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
