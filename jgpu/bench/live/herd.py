"""Measure a class that comes all at once: seats and sessions, and everybody's first iteration.

Nothing is computed on the device, which says what the way there costs. All clients are forked of
one that has PyTorch loaded, for importing it sixty times would measure the host's processor.
"""

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from jgpu.bench.broker import Bench
from jgpu.bench.rig import goals
from jgpu.bench.rig.goals import at_most, percentile, plain

__all__ = ["Herd", "add_options", "main"]

#: seconds in which sixty seats and sessions are to be there
_JOINED_S: Final = 5.0
_PROGRAM: Final = Path(__file__).parents[1] / "resources/herd.py"


def add_options(parser: argparse.ArgumentParser) -> None:
    """What can be said about it on the command line."""
    goals.add_common(parser, seconds=0.0, repeat=3, target_ms=1.0)
    parser.add_argument("--clients", type=int, default=60, help="how many come (default: 60)")


def main(options: argparse.Namespace) -> int:
    """Measure, print, write."""
    joined, first = [], []
    for _ in range(options.repeat):
        with Bench(device="null", threads=1, lanes=1) as bench:
            names = [f"user{number + 1}" for number in range(options.clients)]
            clients = [{"name": name, "environ": bench.seat(name, name)} for name in names]
            with Herd(clients) as herd:
                joined.append(herd.arrive())
                first.append(herd.first_iterations())
    figures = [
        at_most("all have a seat and a session", [max(each) for each in joined], _JOINED_S, "s"),
        plain("first iteration, of the last", [max(each) for each in first], "s"),
        plain("first iteration, median", [percentile(each, 50) for each in first], "s"),
    ]
    goals.show(f"{options.clients} clients that come at once", figures, options)
    return 0


class Herd:
    """The program with the clients, from entry to exit; `CalledProcessError` where it fails."""

    def __init__(
        self,
        clients: Iterable[Mapping[str, Any]],
        wrapped: Iterable[str] = (),
        environ: Mapping[str, str] = os.environ,
    ) -> None:
        """`clients`: of each name and environ, with uid and group for another user.

        `wrapped`: a command that runs the program.
        """
        self._process = subprocess.Popen(
            [*wrapped, sys.executable, str(_PROGRAM), json.dumps([*map(dict, clients)])],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=dict(environ),
        )

    def __enter__(self) -> "Herd":
        self._line()
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate()

    def arrive(self) -> list[float]:
        """Seconds until each has a seat and a session, from the moment that all may."""
        return self._step()

    def first_iterations(self) -> list[float]:
        """Seconds until each has the value of its first iteration, from the moment that all may."""
        return self._step()

    def _step(self) -> list[float]:
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        found: list[float] = json.loads(self._line())
        return found

    def _line(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise subprocess.CalledProcessError(self._process.wait(), _PROGRAM.name)
        return line
