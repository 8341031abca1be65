"""How much several programs train together: shared, each with a context of its own, under MPS."""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any, Final

from jgpu.gpucheck.stand import CaseProgram, Stand, gpu_bytes, together

__all__ = ["throughput"]

#: model, batch, what a shared step of one program may take of a native one
_MODELS: Final = (("cnn", 256, 1.1), ("gpt", 16, 1.1), ("resnet50", 64, 1.02))
_LARGEST: Final = "resnet50"
_ON_HOST: Final = (("cnn", 8, 1.1), ("gpt", 1, 1.1))
_CROWDS: Final = (1, 4, 8)
_CROWDS_ON_HOST: Final = (1, 2)
_SECONDS: Final = 1.5
#: what a program of the largest model has of a GPU's memory where each has a context of its own
_EACH: Final = 9 << 30
_MPS: Final = "nvidia-cuda-mps-control"
_MPS_S: Final = 20


def throughput(stand: Stand) -> None:
    """Steps a second of 1, 4 and 8 programs, and what a step of one alone costs shared."""
    crowds = _CROWDS_ON_HOST if stand.on_host else _CROWDS
    native = _native(stand, crowds)
    served = _under_mps(stand, crowds)
    shared = _shared(stand, crowds)
    for model, _, goal in _models(stand):
        if (model, 1) in native:
            ratio = native[model, 1] / shared[model, 1]
            stand.figure(f"{model}, one program: shared / native", ratio, at_most=goal)
        for count in crowds:
            _tell(stand, model, count, (native, served, shared))


def _tell(
    stand: Stand, model: str, count: int, found: Sequence[dict[tuple[str, int], float]]
) -> None:
    for way, rates in zip(("native", "under MPS", "shared"), found, strict=True):
        if (model, count) in rates:
            stand.figure(
                f"{model}, {way}: steps of {count} at once", rates[model, count], "steps/s"
            )


def _models(stand: Stand) -> tuple[tuple[str, int, float], ...]:
    return _ON_HOST if stand.on_host else _MODELS


def _native(stand: Stand, crowds: Sequence[int], **environ: str) -> dict[tuple[str, int], float]:
    """Steps a second of all, by model and by how many there are, where each has its own context."""
    most = max(crowds) if stand.on_host else gpu_bytes() // _EACH
    with ExitStack() as ending:
        programs = [stand.start("stepping", **environ) for _ in range(max(crowds))]
        for each in programs:
            ending.callback(each.end)
        found: dict[tuple[str, int], float] = {}
        for model, batch, _ in _models(stand):
            counts = [count for count in crowds if model != _LARGEST or count <= most]
            if len(counts) < len(crowds):
                stand.note(f"{model}: more than {most} of them do not fit")
            found |= _rates(programs, model, batch, counts)
    return found


def _under_mps(stand: Stand, crowds: Sequence[int]) -> dict[tuple[str, int], float]:
    """The same under CUDA's own server for several processes, where there is one."""
    if stand.on_host or shutil.which(_MPS) is None:
        stand.note(f"Nothing is compared with MPS: there is no {_MPS} for this device.")
        return {}
    with tempfile.TemporaryDirectory(prefix="jgpu-mps-") as folder:
        environ = {"CUDA_MPS_PIPE_DIRECTORY": folder, "CUDA_MPS_LOG_DIRECTORY": folder}
        started = _control(environ, "-d")
        if started.returncode:
            stand.note(f"Nothing is compared with MPS: {_MPS} says {started.stderr.strip()!r}.")
            return {}
        try:
            return _native(stand, crowds, **environ)
        finally:
            _control(environ, said="quit\n")


def _control(
    environ: dict[str, str], *options: str, said: str = ""
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [_MPS, *options],
        input=said,
        env={**os.environ, **environ},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
        timeout=_MPS_S,
    )


def _shared(stand: Stand, crowds: Sequence[int]) -> dict[tuple[str, int], float]:
    """The same of programs that share the device."""
    settings: dict[str, Any] = {} if stand.on_host else {"memory": gpu_bytes() // 2}
    with stand.broker(lanes=4, **settings) as place, ExitStack() as ending:
        programs = [place.start("stepping", user=f"user{k + 1}") for k in range(max(crowds))]
        for each in programs:
            ending.callback(each.end)
        found: dict[tuple[str, int], float] = {}
        for model, batch, _ in _models(stand):
            found |= _rates(programs, model, batch, crowds)
    return found


def _rates(
    programs: Sequence[CaseProgram], model: str, batch: int, counts: Sequence[int]
) -> dict[tuple[str, int], float]:
    found = {}
    for count in counts:
        at_work = programs[:count]
        together(at_work, f"make {model} {batch}")
        steps = sum(each["steps"] for each in together(at_work, f"train {_SECONDS}"))
        found[model, count] = steps / _SECONDS
    together(programs[: max(counts, default=0)], "drop")
    return found
