"""Is there a GPU to check? Decided without torch, before any case is started."""

import os
from collections.abc import Mapping
from typing import Final

from jgpu.broker.control.executors.gpus import gpu_is_plugged_in, gpu_seems_present

__all__ = ["NOTHING", "why_not"]

#: said where there is none
NOTHING: Final = "There is no GPU here, so nothing was checked: run this again on a host with one."
_HIDDEN: Final = (
    "CUDA_VISIBLE_DEVICES hides every GPU from this process, so nothing was checked: unset it, or "
    "name one."
)
_UNDRIVEN: Final = (
    "There is a GPU, but no NVIDIA driver answers: install it (in a container: start it with the "
    "NVIDIA runtime), then run this again; `jgpu doctor` says what is missing."
)


def why_not(environ: Mapping[str, str] = os.environ) -> tuple[str, bool]:
    """Why there is nothing to check, empty if there is; and whether that is a fault."""
    if gpu_seems_present(environ):
        return "", False
    unhidden = {name: value for name, value in environ.items() if name != "CUDA_VISIBLE_DEVICES"}
    if gpu_seems_present(unhidden):
        return _HIDDEN, False
    return (_UNDRIVEN, True) if gpu_is_plugged_in() else (NOTHING, False)
