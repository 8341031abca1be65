"""What the shared device adds to `import torch`, and what the first `.cuda()` takes.

    python bench/import_cost.py [--rounds N] [--json FILE]

Each round starts a fresh process of each kind, in an order that changes, with a seat at a broker
that this program starts: the loading of torch's backends (which is what `import torch` gains), with
a seat and without; the first upload and the first op of a script; the same in a notebook whose
cells are two seconds apart. Medians with the bootstrap 95 % interval, milliseconds. The start of a
whole kernel: `bench/kernel_start.py`.
"""

import argparse
import json
import os
import platform
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
from jupyter_client.manager import KernelManager

from jgpu.demo.broker import DemoBroker
from jgpu.kernelprovider.environment import furnish

LOADING = """
import json, time
from importlib.metadata import entry_points
import torch
entry_points(group="torch.backends")  # torch looks for them wherever it is imported
begin = time.perf_counter()
torch._import_device_backends()
print(json.dumps({"loading": time.perf_counter() - begin}))
"""
UPLOAD = "begin = time.perf_counter(); x = torch.zeros(1000).cuda(); upload = time.perf_counter()"
OP = "again = time.perf_counter(); x = x + 1; op = time.perf_counter()"
PRINT = "print(json.dumps({'upload': upload - begin, 'op': op - again}))"
SCRIPT = "\n".join(["import json, time", "import torch", UPLOAD, OP, PRINT])
CELLS = ["import json, time", "import torch", UPLOAD, OP, PRINT]
PAUSE_S = 2.0
#: figure, what is run, what it is called, goal in ms
FIGURES = [
    ("import torch gains, no seat", "inactive", "loading", 5),
    ("import torch gains, seat", "active", "loading", 50),
    ("first .cuda() of a script", "script", "upload", 200),
    ("first op of a script", "script", "op", None),
    ("first .cuda() of a notebook", "notebook", "upload", 200),
    ("first op of a notebook", "notebook", "op", None),
]


def environment(address, *, loads):
    """What a kernel of ours has, or a process without a seat."""
    environ = {name: text for name, text in os.environ.items() if not name.startswith("JGPU_")}
    environ.pop("PYTHONDONTWRITEBYTECODE", None)  # an installed package is compiled once
    if address is not None:
        furnish(environ, where=address, ticket="bench")
    environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "1" if loads else "0"
    return environ


def script(source, address, *, loads):
    """What a fresh process prints."""
    command = [sys.executable, "-c", source]
    done = subprocess.run(
        command, env=environment(address, loads=loads), stdout=subprocess.PIPE, check=True
    )
    return json.loads(done.stdout)


def notebook(address):
    """What a fresh kernel prints whose cells come one by one."""
    manager = KernelManager(kernel_name="jgpu")
    manager.start_kernel(env={**os.environ, "JGPU_ADDRESS": str(address)})
    client = manager.client()
    client.start_channels()
    said = []
    try:
        client.wait_for_ready(60)
        for cell in CELLS:
            client.execute_interactive(
                cell, timeout=60, output_hook=lambda m: said.append(m["content"].get("text", ""))
            )
            time.sleep(PAUSE_S)
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)
    return json.loads("".join(said))


def interval(values, rounds=2000):
    """Bootstrap 95 % interval of the median."""
    draw = random.Random(0)
    medians = sorted(statistics.median(draw.choices(values, k=len(values))) for _ in range(rounds))
    return medians[rounds // 40], medians[-rounds // 40]


def run(rounds):
    """What each kind measured, round by round."""
    with (
        tempfile.TemporaryDirectory(prefix="jgpu-bench-") as directory,
        DemoBroker(Path(directory), ["--device", "cpu", "--threads", "1"]) as broker,
    ):
        broker.wait_until_ready()
        kinds = {
            "inactive": lambda: script(LOADING, None, loads=False),
            "active": lambda: script(LOADING, broker.address, loads=False),
            "script": lambda: script(SCRIPT, broker.address, loads=True),
            "notebook": lambda: notebook(broker.address),
        }
        found = {kind: [] for kind in kinds}
        for number in range(-1, rounds):
            order = list(kinds)
            random.Random(number).shuffle(order)
            for kind in order:
                measured = kinds[kind]()
                if number >= 0:
                    found[kind].append(measured)
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args()
    found = run(options.rounds)
    figures = []
    for name, kind, figure, goal in FIGURES:
        values = [1e3 * measured[figure] for measured in found[kind]]
        low, high = interval(values)
        median = statistics.median(values)
        figures.append({"name": name, "median_ms": median, "low": low, "high": high, "goal": goal})
        aim = f"   goal: at most {goal} ms" if goal else ""
        print(f"{name:30} {median:8.1f} ms [{low:.1f}, {high:.1f}]{aim}")
    if options.json:
        host = {"cores": os.cpu_count(), "python": platform.python_version()}
        host |= {"torch": torch.__version__, "load": os.getloadavg()[0]}
        found = {"host": host, "rounds": options.rounds, "figures": figures}
        options.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
