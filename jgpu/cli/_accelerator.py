"""Whether the accelerator is there, in this environment or a kernel's, without importing torch."""

import os
import subprocess
import sys
from collections.abc import Iterator
from importlib import metadata
from typing import Final

from jgpu.accelerator.building import fault_of
from jgpu.accelerator.place import SWITCH, library

__all__ = ["is_missing_for", "look_at_accelerator"]

_TIMEOUT_S: Final = 60.0
_SUBJECT: Final = "accelerator"
#: runs in the other interpreter
_LOOK: Final = "from jgpu.accelerator.place import library; print(library().exists())"


def look_at_accelerator() -> Iterator[tuple[str, str, str, str]]:
    """What the doctor says of it: subject, state, text, advice. Nothing where there is no torch."""
    try:
        file = library()
    except metadata.PackageNotFoundError:
        return
    if os.environ.get(SWITCH) == "0":
        text = f"{SWITCH} is 0, so it is left aside; small steps take longer."
        yield _SUBJECT, "note", text, "Unset it where kernels are started, and `jgpu accelerate`."
    elif not file.exists():
        others = ", ".join(sorted(each.stem for each in file.parent.glob("*.so")))
        text = "It was not built for this Python and torch; small steps take longer."
        if others:
            text = f"{text} What there is was built for another Python, torch or jgpu ({others})."
        yield _SUBJECT, "note", text, "`jgpu accelerate` builds it in half a minute."
    elif fault := fault_of(file):
        text = f"{file} does not load ({fault}); small steps take longer."
        yield _SUBJECT, "problem", text, "`jgpu accelerate` builds it anew."
    else:
        yield _SUBJECT, "ok", f"Kernels and brokers of this environment use {file}.", ""


def is_missing_for(python: str) -> bool:
    """Whether that interpreter's jgpu could have it and has not; where nobody knows, it is not."""
    if os.environ.get(SWITCH) == "0":
        return False
    try:
        if python == sys.executable:
            return not library().exists()
        done = subprocess.run(
            [python, "-P", "-c", _LOOK],
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
            check=True,
        )
    except (OSError, subprocess.SubprocessError, metadata.PackageNotFoundError):
        return False
    return done.stdout.strip() == "False"
