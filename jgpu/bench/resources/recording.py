"""What recording costs a kernel, on a device that computes nothing; in a process with a seat.

    python recording.py rates '{"seconds": 2}'
    python recording.py costs '{"blocks": 40}'

`rates` are ops recorded per second: a chain of one op, and a training loop with all its Python.
`costs` are microseconds of CPU per op, cut and send included: the least of many blocks, which
repeats within a few percent where times do not. Beside each stands its floor: torch's way into
Python and a wrapper made there, with nothing recorded. Prints one line of JSON.
"""

import gc
import json
import sys
import time
import timeit
from collections.abc import Callable
from math import inf
from typing import Any

import torch
from training import WARM_UP, Training, ops_of, small_mlp

from jgpu.device.tensor import device

#: calls of a block: some full pieces of the log
CALLS = 960
#: what is measured; `w` wants a gradient
SAID = ("a + b", "a.add_(b)", "a * 2.0", "a.sum()", "a.view(16)", "a.t()", "w + b")

_make = torch.Tensor._make_wrapper_subclass


class Floor(torch.Tensor):
    """A tensor like ours whose ops do nothing: what is left is torch's own."""

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]
    is_written = False

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """A new wrapper of the same sizes, or the first argument where that is written."""
        return args[0] if cls.is_written else blank(Floor)


class WrittenFloor(Floor):
    """The same for ops in place."""

    is_written = True


def blank(cls: type[torch.Tensor]) -> torch.Tensor:
    """A wrapper over nothing, told no more than a tensor of the device is (`wrapper_of`)."""
    return _make(cls, (4, 4), None, None, None, torch.float32, torch.strided, device())


def costs(blocks: int) -> dict[str, Any]:
    """Microseconds of CPU per op, and of its floor, by what the notebook says."""
    torch.set_num_threads(1)

    def tensors(make: Callable[[], torch.Tensor]) -> dict[str, torch.Tensor]:
        return {"a": make(), "b": make(), "w": make().requires_grad_()}

    ours = tensors(lambda: torch.ones(4, 4, device="cuda"))
    new, written = tensors(lambda: blank(Floor)), tensors(lambda: blank(WrittenFloor))
    found: dict[str, Any] = {said: {"us": inf, "floor_us": inf} for said in SAID}
    for _ in range(blocks):
        for said, row in found.items():
            row["us"] = min(row["us"], cpu_us(said, ours))
            torch.cuda.synchronize()
            floor = written if "_(" in said else new
            row["floor_us"] = min(row["floor_us"], cpu_us(said, floor))
    return found


def cpu_us(said: str, tensors: dict[str, torch.Tensor]) -> float:
    """Microseconds of this thread's CPU per call; what is garbage is collected as ever."""
    timer = timeit.Timer(said, "gc.enable()", time.thread_time, {**tensors, "gc": gc})
    return 1e6 * timer.timeit(CALLS) / CALLS


def rates(seconds: float) -> dict[str, Any]:
    """Ops recorded per second: a chain of one op, and a training loop with all its Python."""
    torch.set_num_threads(1)
    x = torch.ones(64, device="cuda")

    def chain() -> None:
        y = x
        for _ in range(100):
            y = y * 1.5

    training = Training(small_mlp, 256, "cuda")
    found = {}
    for name, function in (("chain", chain), ("training", training.step)):
        for _ in range(WARM_UP):
            function()
        ops = ops_of(function)
        torch.cuda.synchronize()
        measured = []
        until = time.perf_counter() + seconds
        while time.perf_counter() < until:
            begin = time.perf_counter()
            for _ in range(20):
                function()
            measured.append(20 * ops / (time.perf_counter() - begin))
            torch.cuda.synchronize()
        found[name] = {"ops": ops, "rates": measured}
    return found


if __name__ == "__main__":
    print(json.dumps(globals()[sys.argv[1]](**json.loads(sys.argv[2]))))
