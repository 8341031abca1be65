"""Builds the library with the compiler of the host, against the headers that torch brings along.

It takes half a minute, once for each environment, by whoever installs jgpu there: never in a
notebook's kernel, which would make its user wait. The result is tried in a process of its own
before it is put into its place, and so is one that is there already.
"""

import importlib.util
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from importlib import metadata
from pathlib import Path
from typing import Final

from jgpu.accelerator.place import SOURCE, library
from jgpu.errors import HostError
from jgpu.requirements import was_tried

__all__ = ["build", "fault_of"]

_FLAGS: Final = ("-std=c++20", "-O2", "-fPIC", "-shared", "-fvisibility=hidden", "-w")
_LIBRARIES: Final = ("torch_python", "torch_cpu", "c10")
#: loads a file as `loading` does, after torch, whose parts it needs
_TRY: Final = """
import importlib.util, sys, torch
spec = importlib.util.spec_from_file_location("jgpu_accelerator", sys.argv[1])
spec.loader.exec_module(importlib.util.module_from_spec(spec))
"""


def build() -> Path:
    """Build it for this interpreter and its torch; returns the file, made anew only if it must.

    Raises `HostError` where there is no torch, no compiler, no room, or the library does not fit.
    """
    try:
        place = library()
    except metadata.PackageNotFoundError:
        raise HostError(f"{sys.executable} has no torch; install it there.") from None
    if not was_tried(version := metadata.version("torch")):
        raise HostError(
            f"torch {version} was not tried with this jgpu, which goes without the accelerator "
            "there: all works, small steps more slowly."
        )
    if place.exists() and not fault_of(place):
        return place
    try:
        place.parent.mkdir(exist_ok=True)
        with tempfile.TemporaryDirectory(dir=place.parent) as directory:
            made = Path(directory) / place.name
            _compile(made)
            if fault := fault_of(made):
                raise _unusable("does not load beside this torch", fault)
            made.replace(place)
        for older in place.parent.glob(f"{place.name.rsplit('.', 2)[0]}.*.so"):
            if older != place:
                older.unlink()
    except OSError as error:
        raise HostError(
            f"The accelerator cannot be written to {place.parent}: {error.strerror}. Build it as "
            "whoever may write there, which is who installed jgpu."
        ) from None
    return place


def _compile(made: Path) -> None:
    compiler = os.environ.get("CXX") or shutil.which("c++") or shutil.which("g++")
    if compiler is None:
        raise HostError(
            "There is no C++ compiler here. Install g++ (Debian: `apt install g++`), or go on "
            "without the accelerator: all works, small steps more slowly."
        )
    torch = _torch()
    headers = (torch / "include", Path(sysconfig.get_path("include")))
    command = [
        *compiler.split(), *_FLAGS,
        *(f"-I{path}" for path in headers),
        str(SOURCE / "accelerator.cpp"), "-o", str(made),
        f"-L{torch / 'lib'}", *(f"-l{name}" for name in _LIBRARIES),
    ]  # fmt: skip
    if not (headers[1] / "Python.h").exists():
        raise HostError(
            f"{headers[1]} has no Python.h. Install Python's headers (Debian: `apt install "
            "python3-dev`)."
        )
    try:
        said = _first_error(command)
    except OSError as error:
        raise HostError(f"The compiler {compiler!r} does not run: {error.strerror}.") from None
    if said:
        raise _unusable("does not compile against this torch", said)


def fault_of(file: Path) -> str:
    """Why a library does not load beside this interpreter's torch; empty where it does."""
    # Without jgpu in torch: what is tried is the file alone.
    environ = {**os.environ, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
    return _first_error([sys.executable, "-P", "-c", _TRY, str(file)], environ)


def _unusable(failure: str, said: str) -> HostError:
    return HostError(
        f"The accelerator {failure} ({said}). All works without it, small steps more slowly."
    )


def _first_error(command: list[str], environ: dict[str, str] | None = None) -> str:
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
    if not done.returncode:
        return ""
    said = (done.stderr or done.stdout).strip().splitlines()
    last = said[-1] if said else f"it ended with status {done.returncode}"
    return next((line for line in said if "error:" in line.lower()), last).strip()[:400]


def _torch() -> Path:
    spec = importlib.util.find_spec("torch")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent
