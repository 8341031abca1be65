"""Kinds of devices, and what each can do, which is asked for by name."""

from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

import torch

__all__ = ["KINDS", "Capabilities", "DeviceKind"]

DeviceKind: TypeAlias = Literal["cpu", "cuda", "cuda-on-host", "null"]


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What programs can count on."""

    #: torch's device; an executor sees at most one GPU, and meta tensors may stand for its own
    place: torch.device
    #: torch's dispatch keys of kernels that it has
    keys: tuple[str, ...]
    #: where kernels are asked what they return, if not there
    asked_on: torch.device | None = None
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
    "cpu": Capabilities(torch.device("cpu"), ("CPU",)),
    "cuda": Capabilities(
        torch.device("cuda", 0),
        ("CUDA",),
        has_cuda_kernels=True,
        trusts_values=True,
        runs_ahead=True,
    ),
    "cuda-on-host": Capabilities(
        torch.device("meta"),
        ("CPU", "Meta"),
        asked_on=torch.device("cpu"),
        has_cuda_kernels=True,
        trusts_values=True,
        runs_ahead=True,
    ),
    "null": Capabilities(torch.device("meta"), ("Meta",), computes=False),
}
