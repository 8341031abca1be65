"""What keeps a GPU from being used, in one sentence each, with what to do; torch-free.

The texts that torch, CUDA's runtime and the driver give are searched for words that say which
trouble it is. What is not known is told as it was given.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

__all__ = ["TROUBLES", "Trouble", "explained", "trouble_of"]


@dataclass(frozen=True, slots=True)
class Trouble:
    """One thing that keeps a GPU from being used."""

    name: str
    #: words of the texts that tell of it, whatever their case
    words: tuple[str, ...]
    sentence: str
    advice: str

    @property
    def text(self) -> str:
        """What happened and what to do."""
        return f"{self.sentence} {self.advice}"


TROUBLES: Final = (
    Trouble(
        "lost",
        (
            r"fallen off the bus",
            r"GPU is lost",
            r"device is lost",
            r"uncorrectable (NVLink|ECC) error",
            r"hardware stack error",
            r"GPU requires reset",
            r"CUDA_ERROR_UNKNOWN|CUDA error: unknown error",
        ),
        "The GPU is lost: the driver does not reach it any more, or its memory failed.",
        "Look for Xid in `dmesg`, reset it (`nvidia-smi --gpu-reset`) or restart the host; if it "
        "happens again look at its power, temperature and seat.",
    ),
    Trouble(
        "exclusive",
        (r"exclusive-thread device already in use", r"cudaErrorDeviceAlreadyInUse"),
        "The GPU is in exclusive mode, and another process has it.",
        "End that process (`nvidia-smi` lists it), or share it: `nvidia-smi -c DEFAULT`.",
    ),
    Trouble(
        "busy",
        (r"busy or unavailable", r"cudaErrorDevicesUnavailable"),
        "The GPU is busy: another process has it for itself, or its compute mode forbids it.",
        "See who has it with `nvidia-smi`; `nvidia-smi -c DEFAULT` lets several processes use it.",
    ),
    Trouble(
        "too old",
        (
            r"no kernel image is available",
            r"cudaErrorNoKernelImageForDevice",
            r"is not compatible with the current PyTorch",
            r"device kernel image is invalid",
        ),
        "The GPU is too old, or too new, for this build of torch: it has no code for it.",
        "Install a build of torch for another CUDA (https://pytorch.org/get-started/locally), "
        "for older GPUs one of CUDA 12.6, into the broker's environment.",
    ),
    Trouble(
        "old driver",
        (
            r"driver version is insufficient",
            r"NVIDIA driver on your system is too old",
            r"unsupported display driver / cuda driver combination",
            r"forward compatibility was attempted",
        ),
        "The NVIDIA driver does not fit this build of torch.",
        "Update the driver, or install a build of torch for an older CUDA; after an update of the "
        "driver restart the host.",
    ),
    Trouble(
        "no driver",
        (r"Found no NVIDIA driver", r"libcuda\.so", r"Driver/library version mismatch"),
        "No NVIDIA driver answers on this host.",
        "Install it (in a container: start it with the NVIDIA runtime), or restart the host after "
        "its update; `nvidia-smi` must list the GPU.",
    ),
    Trouble(
        "cpu build",
        (r"not compiled with CUDA", r"not linked with support for cuda"),
        "The torch of the broker's environment is built for the CPU alone.",
        "Install a CUDA build of torch there, or serve from the CPU with `--device cpu`.",
    ),
    Trouble(
        "fabric",
        (r"system not yet initialized", r"cudaErrorSystemNotReady"),
        "The GPUs' fabric is not ready.",
        "Start nvidia-fabricmanager, in the driver's version.",
    ),
    Trouble(
        "hidden",
        (
            r"No CUDA GPUs are available",
            r"no CUDA-capable device is detected",
            r"invalid device ordinal",
        ),
        "CUDA shows this process no GPU.",
        "Look at CUDA_VISIBLE_DEVICES, at the rights to /dev/nvidia*, and, where the GPU is in MIG "
        "mode, whether it has an instance (`nvidia-smi -L`); name one by its MIG-UUID.",
    ),
    Trouble(
        "no pinned memory",
        (r"cudaHostAlloc", r"cudaHostRegister", r"RLIMIT_MEMLOCK", r"cannot be pinned"),
        "The host gives no pinned memory.",
        "Raise the limit of locked memory of whoever runs the broker (LimitMEMLOCK=infinity, or "
        "ulimit -l unlimited).",
    ),
    Trouble(
        "used up",
        (r"out of memory", r"cudaErrorMemoryAllocation"),
        "Other processes leave too little of the GPU's memory.",
        "End them (`nvidia-smi` lists them), or wait for them.",
    ),
    Trouble(
        "faulted",
        (
            r"device-side assert",
            r"illegal memory access",
            r"illegal instruction",
            r"misaligned address",
            r"unspecified launch failure",
            r"launch timed out",
        ),
        "A kernel failed on the GPU, which ends everything that the process had on it.",
        "A new executor starts; the notebooks whose work ran are told.",
    ),
)
_FOUND: Final = tuple((re.compile("|".join(t.words), re.IGNORECASE), t) for t in TROUBLES)
_MOST: Final = 300


def trouble_of(text: str) -> Trouble | None:
    """The trouble that a text of torch, CUDA or the driver tells of; None if it is another."""
    return next((trouble for words, trouble in _FOUND if words.search(text)), None)


def explained(errors: Iterable[BaseException | str]) -> str:
    """A sentence for errors of which one led to the other, with the last one's own first line."""
    texts = [each if isinstance(each, str) else str(each) or type(each).__name__ for each in errors]
    said = texts[-1].strip().partition("\n")[0][:_MOST]
    trouble = next((found for text in reversed(texts) if (found := trouble_of(text))), None)
    return said if trouble is None else f"{trouble.text} ({said})"
