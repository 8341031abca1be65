"""Round trips and switches of an executor, as a client sees them: medians and 99th percentiles.

    python bench/roundtrip.py [--device cpu|null] [--rounds N] [--json FILE]

Starts an executor process of its own and speaks to it at the level of the wire, so that the
figures hold nothing of a client's torch. "op alone" is the same op in this process.
"""

import argparse
import json
import statistics
import sys
import time
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "broker" / "executor"))
from client import Executor, chain, scale

from jgpu.wire import messages as m


def timed(rounds, action):
    """Microseconds of each round, after a warm-up."""
    for _ in range(max(20, rounds // 10)):
        action()
    found = []
    for _ in range(rounds):
        begin = time.perf_counter()
        action()
        found.append(1e6 * (time.perf_counter() - begin))
    return found


def summary(name, found):
    found = sorted(found)
    return {
        "name": name,
        "median_us": round(statistics.median(found), 1),
        "p99_us": round(found[min(len(found) - 1, int(0.99 * len(found)))], 1),
    }


def run_and_download(client, program, source, params=()):
    """One program, one reply: what `loss.item()` costs."""
    key = client.define(program)
    live = b"\x01" + bytes((program.fresh - 1) // 8)
    if program.fresh > 1:
        live = (1 << (program.fresh - 1)).to_bytes((program.fresh + 7) // 8, "little")
    size = 16

    def action():
        first = client.new(program.fresh)
        last = first + program.fresh - 1
        request = client.next_request()
        client.send_all(
            [
                m.Run(client.next_work(), key, (source,), first, live, params=params),
                m.Download(client.next_work(), request, last, 0, size),
                m.Free((last,)),
            ]
        )
        client.reply(request)

    return action


def switches(one, other):
    """Two sessions of two users, a wait each in turn."""

    def action():
        one.sync()
        other.sync()

    return action


def measure(device, rounds):
    """All figures of a device."""
    rows = []
    with Executor(device, lanes=1, threads=1, capacity=1 << 30) as executor:
        one, other = executor.connect("user1"), executor.connect("user2")
        source = one.floats(1, 2, 3, 4)
        rows.append(summary("memory (no work)", timed(rounds, one.memory)))
        rows.append(summary("sync", timed(rounds, one.sync)))
        rows.append(summary("download 16 B", timed(rounds, lambda: one.download(source, 16))))
        run = run_and_download(one, scale(), source, (2.0,))
        rows.append(summary("run 1 op + download", timed(rounds, run)))
        run = run_and_download(one, chain(4, 64), source)
        rows.append(summary("run 64 ops + download", timed(rounds, run)))
        pair = [value / 2 for value in timed(rounds, switches(one, other))]
        rows.append(summary("sync, sessions in turn", pair))
    a = torch.ones(4)
    rows.append(summary("1 op alone", timed(rounds, lambda: a * 2.0)))

    def ops():
        b = a
        for _ in range(64):
            b = b + b

    rows.append(summary("64 ops alone", timed(rounds, ops)))
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cpu", choices=["cpu", "null"])
    parser.add_argument("--rounds", type=int, default=2000)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    rows = measure(arguments.device, arguments.rounds)
    print(f"{'':24} {'median':>10} {'p99':>10}  (microseconds, {arguments.device})")
    for row in rows:
        print(f"{row['name']:24} {row['median_us']:>10} {row['p99_us']:>10}")
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
