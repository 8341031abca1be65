"""Finds the library that was built for this process's torch, if there is one.

Where it is not there, or does not load, the plain form is used, and nobody is told but who asks
(`jgpu doctor`). It is used, too, beside a torch that nobody has tried, and is what checks itself.

Imports no torch, which has to be there before `load` is called.
"""

import importlib.util
import os
from functools import cache
from importlib import metadata
from typing import Any

from jgpu.accelerator.place import SWITCH, library
from jgpu.requirements import was_tried

__all__ = ["load"]


@cache
def load() -> Any:
    """The library, once a process; None where the plain form is to be used."""
    if os.environ.get(SWITCH) == "0":
        return None
    try:
        if not was_tried(metadata.version("torch")):
            return None
        file = library()
        if not file.exists():
            return None
        spec = importlib.util.spec_from_file_location("jgpu_accelerator", file)
        assert spec is not None
        assert spec.loader is not None
        made = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(made)
    except (ImportError, OSError, metadata.PackageNotFoundError):
        return None
    return made
