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
    #: the kernels are CUDA's: torch chooses among several, and they trust every index
    has_cuda_kernels: bool = False
    #: a kernel goes on after its call has returned
    runs_ahead: bool = False


KINDS: Final[dict[str, Capabilities]] = {
    "cpu": Capabilities(torch.device("cpu")),
    "cuda": Capabilities(torch.device("cuda", 0), has_cuda_kernels=True, runs_ahead=True),
    "null": Capabilities(torch.device("meta"), computes=False),
}
