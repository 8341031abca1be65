"""Who holds the device: looked at while the kernels run, from outside, in /proc and through NVML.

A process with a context on an NVIDIA GPU has the driver's device files open; a kernel that shares
the GPU through the broker never has. Where there is no GPU the same look finds no such file.
"""

import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import psutil

from jgpu.wire.reports.report import Report

__all__ = ["Evidence"]

_EXECUTOR: Final = "jgpu.broker.executor"
_DEVICE_FILES: Final = "/dev/nvidia"


@dataclass(slots=True)
class Evidence:
    """What was seen so far; `look` adds to it."""

    #: processes that were executors, by the broker's report and by its children
    executors: set[int] = field(default_factory=set)
    #: kernels that were looked at, and how often one was
    kernels: set[int] = field(default_factory=set)
    looks: int = 0
    #: processes of kernels that had a device file open or a visible GPU, with what was seen
    intruders: dict[int, str] = field(default_factory=dict)
    #: processes that NVML lists as computing, of this demonstration's; None where there is no NVML
    computing: set[int] | None = None

    def look(self, status: Report, broker: int, kernels: Iterable[int]) -> None:
        """Look once at the broker's children and at the kernels with all their children."""
        self.looks += 1
        self.executors |= {device.pid for device in status.devices if device.pid}
        self.executors |= set(_executors_of(broker))
        families = {pid: _family(pid) for pid in kernels}
        self.kernels |= {pid for pid, family in families.items() if family}
        for member in {member for family in families.values() for member in family}:
            if seen := _gpu_files(member) or _visible_gpus(member):
                self.intruders[member] = seen
        listed = _compute_processes()
        if listed is not None:
            own = {broker, *self.executors, *(m for family in families.values() for m in family)}
            self.computing = (self.computing or set()) | (listed & own)

    @property
    def one_executor(self) -> bool:
        """Exactly one process ever held the device."""
        return len(self.executors) == 1

    @property
    def no_context_in_kernels(self) -> bool:
        """No kernel, and no process that one started, could have used a GPU by itself."""
        return not self.intruders and (self.computing or set()) <= self.executors

    def sentences(self) -> list[str]:
        """What was seen, and how."""
        executors = ", ".join(map(str, sorted(self.executors)))
        text = (
            f"One executor process (pid {executors}) computed for all {len(self.kernels)} kernels."
            if self.one_executor
            else f"{len(self.executors)} executor processes ({executors}), where one was due."
        )
        return [text, self._about_contexts()]

    def _about_contexts(self) -> str:
        how = (
            f"{self.looks} looks at {len(self.kernels)} kernel processes and their children: "
            f"CUDA_VISIBLE_DEVICES empty, no {_DEVICE_FILES}* open"
        )
        if self.computing is not None:
            how += f"; of these processes NVML lists {sorted(self.computing) or 'none'}"
        if self.no_context_in_kernels:
            return f"No kernel has a GPU context ({how})."
        seen = "; ".join(f"{pid}: {what}" for pid, what in sorted(self.intruders.items()))
        return f"Some kernel may have a GPU context ({how}): {seen}."


def _executors_of(broker: int) -> list[int]:
    try:
        children = psutil.Process(broker).children()
        return [child.pid for child in children if _EXECUTOR in child.cmdline()]
    except psutil.Error:  # ended meanwhile
        return []


def _family(pid: int) -> list[int]:
    """A process and all that it started; empty if it is gone."""
    try:
        process = psutil.Process(pid)
        return [pid, *(child.pid for child in process.children(recursive=True))]
    except psutil.Error:
        return []


def _gpu_files(pid: int) -> str:
    """A device file of the driver that the process has open, "" for none."""
    try:
        descriptors = list(Path(f"/proc/{pid}/fd").iterdir())
    except OSError:
        return ""
    for descriptor in descriptors:
        try:
            target = os.readlink(descriptor)
        except OSError:
            continue
        if target.startswith(_DEVICE_FILES):
            return target
    return ""


def _visible_gpus(pid: int) -> str:
    """What a process was started with, if that leaves a GPU visible to it."""
    try:
        variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return ""
    if not any(variables):  # gone, or just being started
        return ""
    return "" if b"CUDA_VISIBLE_DEVICES=" in variables else "CUDA_VISIBLE_DEVICES is not empty"


def _compute_processes() -> set[int] | None:
    """Processes with a context on any GPU, or None where NVML does not work."""
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return None
    try:
        found: set[int] = set()
        for index in range(pynvml.nvmlDeviceGetCount()):
            handle = pynvml.nvmlDeviceGetHandleByIndex(index)
            found |= {p.pid for p in pynvml.nvmlDeviceGetComputeRunningProcesses(handle)}
    except pynvml.NVMLError:
        return None
    else:
        return found
    finally:
        pynvml.nvmlShutdown()
