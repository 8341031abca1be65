"""What `jgpu doctor` finds out about the host's GPUs, from the driver and without torch."""

import os
import re
import resource
from collections.abc import Callable, Iterator
from importlib import metadata
from typing import Any, Final

from jgpu.broker.control.executors.gpus import gpu_is_plugged_in
from jgpu.broker.gputroubles import TROUBLES, Trouble, trouble_of

__all__ = ["look_at_gpus"]

#: subject, state, text, advice
_Line = tuple[str, str, str, str]
_OK, _NOTE, _PROBLEM = "ok", "note", "problem"
_BY_NAME: Final = {trouble.name: trouble for trouble in TROUBLES}
#: NVML's numbers of compute modes
_EXCLUSIVE: Final = (1, 3)
_PROHIBITED: Final = 2
#: lowest compute capability that torch's builds for a CUDA have code for
_LEAST: Final = (((13, 0), (7, 5)), ((12, 8), (7, 0)), ((12, 0), (5, 0)))
#: bytes of locked memory below which arenas are not pinned
_LOCKED: Final = 1 << 30


def look_at_gpus() -> Iterator[_Line]:
    """A line for each thing found out."""
    nodes = [f"/dev/nvidia{n}" for n in range(16) if os.path.exists(f"/dev/nvidia{n}")]
    for node in nodes:
        if not os.access(node, os.R_OK | os.W_OK):
            text = f"You may not open {node}."
            advice = "That is right for users of a host's broker, and wrong for its account."
            yield "GPU", _NOTE, text, advice
    try:
        import pynvml
    except ImportError:
        yield "GPU", _NOTE, "nvidia-ml-py is not installed, so the driver is not asked.", ""
        return
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        yield from _without_driver(str(error), is_there=bool(nodes) or gpu_is_plugged_in())
        return
    try:
        driver = _text(pynvml.nvmlSystemGetDriverVersion())
        for index in range(pynvml.nvmlDeviceGetCount()):
            yield from _look_at(pynvml, index, driver)
        yield from _locked_memory()
    except pynvml.NVMLError as error:
        yield _problem(trouble_of(str(error)), f"The driver fails: {error}.", "Look into dmesg.")
    finally:
        pynvml.nvmlShutdown()


def _without_driver(said: str, *, is_there: bool) -> Iterator[_Line]:
    if is_there:
        yield _problem(trouble_of(said) or _BY_NAME["no driver"], f"There is a GPU, but: {said}.")
    else:
        yield "GPU", _NOTE, "No GPU here; brokers serve from the CPU (device cpu).", ""


def _look_at(nvml: Any, index: int, driver: str) -> Iterator[_Line]:
    """One GPU: is it there, may it be used, does the build of torch have code for it?"""
    try:
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
        total = nvml.nvmlDeviceGetMemoryInfo(handle).total
        name = _text(nvml.nvmlDeviceGetName(handle))
    except nvml.NVMLError as error:
        yield _problem(trouble_of(str(error)), f"{index}: the driver says {error}.")
        return
    yield "GPU", _OK, f"{index}: {name}, {total / 2**30:.1f} GiB, driver {driver}.", ""
    for look in (_mode, _instances, _age):
        try:
            yield from look(nvml, handle, index)
        except nvml.NVMLError:  # not every GPU has every property
            continue


def _mode(nvml: Any, handle: Any, index: int) -> Iterator[_Line]:
    mode = nvml.nvmlDeviceGetComputeMode(handle)
    if mode == _PROHIBITED:
        yield _problem(_BY_NAME["busy"], f"{index}: its compute mode is Prohibited.")
    elif mode in _EXCLUSIVE:
        others = [each.pid for each in nvml.nvmlDeviceGetComputeRunningProcesses(handle)]
        text = f"{index}: it is in exclusive mode"
        if others:
            pids = ", ".join(map(str, others))
            yield _problem(_BY_NAME["exclusive"], f"{text}, and process {pids} has it.")
        else:
            yield "GPU", _NOTE, f"{text}: one broker may use it, and nobody beside it.", ""


def _instances(nvml: Any, handle: Any, index: int) -> Iterator[_Line]:
    current, _ = nvml.nvmlDeviceGetMigMode(handle)
    if not current:
        return
    found = []
    for place in range(nvml.nvmlDeviceGetMaxMigDeviceCount(handle)):
        try:
            part = nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, place)
            found.append(_text(nvml.nvmlDeviceGetUUID(part)))
        except nvml.NVMLError:
            continue
    if not found:
        text = f"{index}: it is in MIG mode and has no instance, so nobody can compute on it."
        yield "GPU", _PROBLEM, text, "Make one (`nvidia-smi mig -cgi ... -C`), or turn MIG off."
        return
    text = f"{index}: it is in MIG mode; a broker serves one instance."
    yield "GPU", _NOTE, text, f"Name it where the broker starts: CUDA_VISIBLE_DEVICES={found[0]}."


def _age(nvml: Any, handle: Any, index: int) -> Iterator[_Line]:
    has = tuple(nvml.nvmlDeviceGetCudaComputeCapability(handle))
    build = _cuda_of_torch()
    least = next((least for cuda, least in _LEAST if build is not None and build >= cuda), None)
    if least is not None and build is not None and has < least:
        text = (
            f"{index}: its compute capability is {has[0]}.{has[1]}; torch for CUDA "
            f"{build[0]}.{build[1]} needs {least[0]}.{least[1]}."
        )
        yield _problem(_BY_NAME["too old"], text)


def _cuda_of_torch() -> tuple[int, int] | None:
    """The CUDA that this environment's torch was built for, by its packages; None: unknown."""
    for name in ("nvidia-cuda-runtime", "nvidia-cuda-runtime-cu12"):
        try:
            found = re.match(r"(\d+)\.(\d+)", metadata.version(name))
        except metadata.PackageNotFoundError:
            continue
        if found is not None:
            return int(found[1]), int(found[2])
    return None


def _locked_memory(
    limit: Callable[[int], tuple[int, int]] = resource.getrlimit,
) -> Iterator[_Line]:
    soft, _ = limit(resource.RLIMIT_MEMLOCK)
    if soft != resource.RLIM_INFINITY and soft < _LOCKED:
        text = f"Locked memory is limited to {soft >> 10} KiB here: large batches may copy slower."
        yield "locked memory", _NOTE, text, _BY_NAME["no pinned memory"].advice


def _problem(trouble: Trouble | None, text: str, advice: str = "") -> _Line:
    if trouble is None:
        return "GPU", _PROBLEM, text, advice
    return "GPU", _PROBLEM, f"{text} {trouble.sentence}", trouble.advice


def _text(value: Any) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)
