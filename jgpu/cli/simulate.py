"""Ask what if: published workloads, a class of students, or a recording, under the same scheduler.

The scheduler that decides is the one that decides live; the clock, the device and the clients are
simulated. Every simulation says what it assumes and what it leaves out.
"""

import argparse
import importlib
from collections.abc import Sequence
from typing import Any, Final

from jgpu.simulate import report

__all__ = ["main"]

#: what can be simulated, and what it tells; each is a module of `jgpu.simulate`
_KINDS: Final = {
    "salus": "Salus' Table 1: 100 jobs on one GPU, five policies",
    "tiresias": "the 60-job trace on one device, policies side by side",
    "gandiva-packing": "Gandiva's Table 1: which jobs gain by sharing lanes, and which do not",
    "inference": "Salus' 42 inference jobs on one GPU: added latency against load",
    "hyperparameters": "300 trials of one model: makespan against one after the other",
    "class": "a class with one assignment: waits, fairness, memory",
    "trace": "a trace of your own, policies side by side",
    "replay": "a recording of a live broker, again or under another policy",
    "scale": "what one decision of the scheduler costs, by number of sessions",
}
#: modules whose names are not those of what they simulate
_PLACES: Final = {
    "class": "classroom",
    "gandiva-packing": "published.gandiva",
    "hyperparameters": "published.hyperparameters",
    "inference": "published.inference",
    "salus": "published.salus",
    "tiresias": "published.tiresias",
}


def main(arguments: Sequence[str]) -> int:
    """`jgpu simulate WHAT [OPTIONS]`; prints a report, and writes it where asked to."""
    parser = argparse.ArgumentParser(prog="jgpu simulate", description=__doc__)
    commands = parser.add_subparsers(dest="what", required=True, metavar="WHAT")
    for name, text in _KINDS.items():
        kind = commands.add_parser(name, help=text, description=_module(name).__doc__)
        _module(name).add_options(kind)
        report.add_common(kind)
    options = parser.parse_args(arguments)
    report.show(_module(options.what).simulate(options), options)
    return 0


def _module(name: str) -> Any:
    place = _PLACES.get(name, name)
    return importlib.import_module(f"jgpu.simulate.{place}")
