"""Build the accelerator, which makes small steps of a notebook cheaper.

It is a small library in C++ that records a notebook's ops without Python, for about half of what
each costs the kernel. It is built for one Python and its torch, which takes half a minute, a C++
compiler (g++) and Python's headers, and is put beside jgpu in that environment: run this once for
each environment of kernels, as whoever installed jgpu there, and again after an upgrade of jgpu,
torch or Python. Kernels use it from their next start. Without it everything works and gives the
same results.
"""

import argparse
import subprocess
import sys
from collections.abc import Sequence
from typing import Final

from jgpu.accelerator.building import build
from jgpu.cli._accelerator import is_missing_for
from jgpu.errors import HostError
from jgpu.kernelprovider.interpreter import Interpreter, examine

__all__ = ["main"]

_MODULE: Final = "jgpu.accelerator"


def main(arguments: Sequence[str]) -> int:
    """`jgpu accelerate [--python INTERPRETER]`."""
    parser = argparse.ArgumentParser(prog="jgpu accelerate", description=__doc__)
    parser.add_argument(
        "--python",
        metavar="INTERPRETER",
        help="build it for this Python, or the environment in this directory, which has jgpu and "
        "torch (default: the Python that runs this command)",
    )
    options = parser.parse_args(arguments)
    found = examine(options.python) if options.python else None
    if is_missing_for(found.executable if found else sys.executable):
        print("Building the accelerator (half a minute) ...", flush=True)
    place = _built_by(found) if found else str(build())
    print(f"The accelerator is {place}; kernels and brokers use it from their next start.")
    return 0


def _built_by(found: Interpreter) -> str:
    if not found.has["jgpu"]:
        raise HostError(
            f"{found.prefix} has no jgpu. `jgpu kernelspec install --python "
            f"{found.executable}` installs it, with a kernel; or use that environment's pip."
        )
    command = [found.executable, "-P", "-m", _MODULE]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    said = (done.stdout if done.returncode == 0 else done.stderr).strip().splitlines()
    last = said[-1] if said else f"status {done.returncode}"
    if f"No module named {_MODULE}" in last:
        raise HostError(
            f"The jgpu in {found.prefix} ({found.has['jgpu']}) is older than the accelerator. "
            "Upgrade it there."
        )
    if done.returncode:
        raise HostError(last)
    return last
