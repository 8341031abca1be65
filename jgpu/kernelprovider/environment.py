"""What the environment of a process with a seat says, and how to get back out of it.

A seat is a ticket in the environment. Beside it stand the broker's address, what the broker shows
of the process, and the variables that hide every GPU: the process reaches one through the broker
alone. What the hiding overwrote is kept, for a broker that a child of such a process may start.

Does not cover getting a seat (`jgpu.kernelprovider.seat`).
"""

import os
from collections.abc import Mapping, MutableMapping
from pathlib import Path
from typing import Final

from jgpu.wire import address

__all__ = ["HIDDEN", "STARTUP", "furnish", "outer_environment", "set_startup"]

#: Variables that hide the GPUs, and the values that do.
HIDDEN: Final = {
    "CUDA_VISIBLE_DEVICES": "",
    "NVIDIA_VISIBLE_DEVICES": "void",
    "HIP_VISIBLE_DEVICES": "-1",
    "ROCR_VISIBLE_DEVICES": "-1",
}
#: Holds the PYTHONSTARTUP that ours displaced.
STARTUP: Final = "JGPU_OUTER_PYTHONSTARTUP"
_OUTER: Final = "JGPU_OUTER_"
_STARTUP_FILE: Final = Path(__file__).with_name("resources") / "server/startup.py"


def furnish(
    environ: MutableMapping[str, str],
    *,
    where: address.Address | None,
    ticket: str = "",
    problem: str = "",
    label: str = "",
    kernel_id: str = "",
) -> None:
    """Give a process its seat, or, without `ticket`, the sentence why it has none."""
    if where is not None:
        environ[address.ADDRESS] = str(where)
    environ[address.TICKET] = ticket or address.NO_TICKET
    _put(environ, address.PROBLEM, problem)
    _put(environ, address.LABEL, label)
    _put(environ, address.KERNEL_ID, kernel_id)
    # torch loads the shared device through its entry points; a seat is of no use without.
    environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "1"
    for variable, value in HIDDEN.items():
        if environ.get(variable, value) != value:
            environ[_OUTER + variable] = environ[variable]
        environ[variable] = value


def set_startup(environ: MutableMapping[str, str]) -> None:
    """Let IPython run `server/startup.py` first, whatever environment its Python is of."""
    if environ.get("PYTHONSTARTUP") != os.fspath(_STARTUP_FILE):
        _put(environ, STARTUP, environ.get("PYTHONSTARTUP", ""))
        environ["PYTHONSTARTUP"] = os.fspath(_STARTUP_FILE)


def outer_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment without seat and hiding: that of a broker."""
    outer = dict(environ)
    if address.TICKET not in outer:
        return outer
    for variable, value in HIDDEN.items():
        before = outer.pop(_OUTER + variable, None)
        if outer.get(variable) == value:
            del outer[variable]
        if before is not None:
            outer[variable] = before
    if outer.get("PYTHONSTARTUP") == os.fspath(_STARTUP_FILE):
        _put(outer, "PYTHONSTARTUP", outer.get(STARTUP, ""))
    for variable in (
        address.ADDRESS,
        address.TICKET,
        address.PROBLEM,
        address.LABEL,
        address.KERNEL_ID,
        address.USER,
        address.PRIORITY,
        STARTUP,
    ):
        outer.pop(variable, None)
    return outer


def _put(environ: MutableMapping[str, str], variable: str, value: str) -> None:
    """Set a variable, or remove it rather than leave it empty or another process's."""
    if value:
        environ[variable] = value
    else:
        environ.pop(variable, None)
