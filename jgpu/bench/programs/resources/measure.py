"""Runs the programs beside this file, natively and on the shared device, in a process with a seat.

    python measure.py '{"names": ["gan"], "pairs": 9, "block_s": 0.2, "periods": 3}'

Each is a module with a `Program(device)`, whose `step()` returns what the step is judged by, and a
`PERIOD`, after which its steps repeat. First both sides take `periods` of them from the same seed,
and what they return is compared, bit for bit. Then blocks of steps alternate. One line of JSON a
program.
"""

import importlib
import json
import sys
import time
from typing import Any

import torch

from jgpu.device import current


def measure(name: str, pairs: int, block_s: float, periods: float) -> dict[str, Any]:
    """Milliseconds of a step in each pair of blocks, its waits, and whether all bits are native."""
    module = importlib.import_module(name)
    sides, said = {}, []
    for device in ("cpu", "cuda"):
        torch.manual_seed(0)
        sides[device] = program = module.Program(device)
        torch.manual_seed(1)
        steps = max(1, round(periods * module.PERIOD))
        judged = [program.step().detach().double().cpu().reshape(()) for _ in range(steps)]
        said.append(torch.stack(judged).view(torch.int64))
    native, shared = sides["cpu"], sides["cuda"]
    block(shared, 2 * steps)  # as it is measured: nothing but the program's own waits
    count = steps * max(1, round(block_s / block(native, steps) / steps))
    rows = [pair(native, shared, count, native_first=k % 2 == 0) for k in range(pairs)]
    found = {"name": name, "steps": count, "pairs": rows, "compared": steps}
    return found | {"bit_identical": bool(torch.equal(*said))}


def pair(native: Any, shared: Any, steps: int, *, native_first: bool) -> dict[str, float]:
    """Milliseconds of a step on either side, this process's processor's among them, and waits."""
    row = {}
    for side in ("native", "device")[:: 1 if native_first else -1]:
        waits, cpu = current.session.round_trips, time.process_time()
        row[f"{side}_ms"] = 1e3 * block(native if side == "native" else shared, steps)
        row[f"{side}_cpu_ms"] = 1e3 * (time.process_time() - cpu) / steps
        if side == "device":  # one wait is the block's own, at its end
            row["waits"] = (current.session.round_trips - waits - 1) / steps
    return row


def block(program: Any, steps: int) -> float:
    """Seconds per step; all of them are over when it returns."""
    begin = time.perf_counter()
    for _ in range(steps):
        last = program.step()
    last.item()
    return (time.perf_counter() - begin) / steps


if __name__ == "__main__":
    options = json.loads(sys.argv[1])
    torch.set_num_threads(1)
    for each in options.pop("names"):
        print(json.dumps(measure(each, **options)), flush=True)
