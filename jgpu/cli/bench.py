"""Measure: what sharing costs, and whether PyTorch computes the same on the shared device."""

import argparse
import importlib
from collections.abc import Sequence
from typing import Final

__all__ = ["main"]

#: what can be measured: the module that does it and what it tells
_KINDS: Final = {
    "overhead": ("overhead", "one notebook alone: step times, round trips, bytes, ops per second"),
    "programs": (
        "programs.command",
        "ten small programs as students write them: step times, waits",
    ),
    "fidelity": ("fidelity.command", "PyTorch's own test databases, natively and shared"),
    "fairness": ("live.fairness", "several users on one lane: who gets how much of it"),
    "switch": ("live.switch", "what passes between two sessions on a lane, and natively"),
    "round-trip": ("live.roundtrip", "the shortest wait: idle, without cores, beside others"),
    "interactive": ("live.interactive", "a short cell while many notebooks train"),
    "throughput": ("live.throughput", "eight notebooks at once, shared and native"),
    "memory": ("live.memory", "many sessions whose models fit and whose other tensors do not"),
    "waiting": ("live.waiting", "sessions that want three times the memory there is"),
    "herd": ("live.herd", "sixty notebooks that come at once: seats, and first iterations"),
    "lab": ("live.lab", "JupyterLab's page: bytes to it, the server's processor, how soon"),
    "first-iterations": ("live.first", "jobs that arrive together: fair against fifo"),
}


def main(arguments: Sequence[str]) -> int:
    """`jgpu bench WHAT [OPTIONS]`; each starts a broker of its own on a free socket."""
    parser = argparse.ArgumentParser(prog="jgpu bench", description=__doc__)
    commands = parser.add_subparsers(dest="what", required=True, metavar="WHAT")
    for name, (module, text) in _KINDS.items():
        kind = importlib.import_module(f"jgpu.bench.{module}")
        kind.add_options(commands.add_parser(name, help=text, description=kind.__doc__))
    options = parser.parse_args(arguments)
    kind = importlib.import_module(f"jgpu.bench.{_KINDS[options.what][0]}")
    status: int = kind.main(options)
    return status
