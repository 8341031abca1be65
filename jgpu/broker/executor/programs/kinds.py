"""Kinds of devices, and what each can do, which is asked for by name."""

from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

import torch

__all__ = ["KINDS", "Capabilities", "DeviceKind"]

DeviceKind: TypeAlias = Literal["cpu", "cuda", "null"]


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What programs can count on."""

    #: torch's device; an executor sees at most one GPU
    place: torch.device
    #: kernels run, on data that are there
    computes: bool = True
    #: the kernels are CUDA's: torch chooses among several
    has_cuda_kernels: bool = False
    #: the kernels trust every value, and a wrong one ends the device: guards replace it, and note
    #: on the device that they did
    trusts_values: bool = False
    #: a kernel goes on after its call has returned
    runs_ahead: bool = False


KINDS: Final[dict[str, Capabilities]] = {
    "cpu": Capabilities(torch.device("cpu")),
    "cuda": Capabilities(
        torch.device("cuda", 0), has_cuda_kernels=True, trusts_values=True, runs_ahead=True
    ),
    "null": Capabilities(torch.device("meta"), computes=False),
}
