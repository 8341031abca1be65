"""How much longer a kernel takes to start with a seat than plain ipykernel; alternating pairs.

    python bench/kernel_start.py [--pairs N] [--json]

From `start_kernel` to the first answer on the shell channel. Asks the broker that `JGPU_ADDRESS`
leads to, starting a private one where none answers; its start is not measured.
"""

import argparse
import json
import os
import random
import statistics
import time

from jupyter_client.kernelspec import KernelSpec, KernelSpecManager
from jupyter_client.manager import KernelManager

from jgpu.kernelprovider.kernelspec import kernel_json
from jgpu.kernelprovider.seat import leave, take


class OneSpec(KernelSpecManager):
    """Knows two specs that differ in nothing but the provisioner."""

    def get_kernel_spec(self, kernel_name):
        content = kernel_json()
        if kernel_name == "plain":
            del content["metadata"]["kernel_provisioner"]
        return KernelSpec(name=kernel_name, **content)


def start(name):
    """Seconds until a new kernel answers."""
    manager = KernelManager(kernel_name=name, kernel_spec_manager=OneSpec())
    began = time.perf_counter()
    manager.start_kernel()
    client = manager.client()
    client.start_channels()
    client.kernel_info()
    client.get_shell_msg(timeout=60)
    elapsed = time.perf_counter() - began
    client.stop_channels()
    manager.shutdown_kernel(now=True)
    return elapsed


def interval(values, rounds=2000):
    """Bootstrap 95 % interval of the median."""
    draw = random.Random(0)
    medians = sorted(statistics.median(draw.choices(values, k=len(values))) for _ in range(rounds))
    return medians[rounds // 40], medians[-rounds // 40]


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--pairs", type=int, default=15)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    leave(take(os.environ, kernel_id="bench"))
    for name in ("plain", "shared"):
        start(name)
    times = {"plain": [], "shared": []}
    for pair in range(options.pairs):
        for name in ("plain", "shared") if pair % 2 else ("shared", "plain"):
            times[name].append(start(name))
    extra = [shared - plain for plain, shared in zip(*times.values(), strict=True)]
    low, high = interval(extra)
    result = {
        "pairs": options.pairs,
        "plain_ms": statistics.median(times["plain"]) * 1e3,
        "shared_ms": statistics.median(times["shared"]) * 1e3,
        "extra_ms": statistics.median(extra) * 1e3,
        "extra_ms_95": [low * 1e3, high * 1e3],
        "goal_ms": 50,
    }
    if options.json:
        print(json.dumps(result))
        return
    print(f"plain ipykernel    {result['plain_ms']:7.0f} ms")
    print(f"shared GPU         {result['shared_ms']:7.0f} ms")
    print(
        f"extra (median)     {result['extra_ms']:7.0f} ms"
        f"   [{low * 1e3:.0f}, {high * 1e3:.0f}]   goal: at most 50 ms"
    )


if __name__ == "__main__":
    main()
