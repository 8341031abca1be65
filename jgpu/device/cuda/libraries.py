"""What `torch.cuda` calls CUDA's other libraries for: NCCL, tuned products, GPUDirect Storage.

They have no place in a kernel without a GPU. Collectives of one device are done, what only asks is
answered, and the rest is refused in a sentence: also where the torch has no such function at all.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch

from jgpu.device.errors import refused

__all__ = ["REPLACED"]


def _refuse(what: str, instead: str) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        raise refused(what, instead)

    return call


# -- NCCL ------------------------------------------------------------------------------------

_SEVERAL = ("several devices", "this notebook has one device, cuda:0")


def _one(tensors: Any) -> torch.Tensor:
    """The tensor of the one device, of those that each device gives."""
    if isinstance(tensors, torch.Tensor):
        raise TypeError("Inputs should be a collection of tensors")
    if len(tensors) != 1:
        raise refused(*_SEVERAL)
    found: torch.Tensor = tensors[0]
    return found


def is_available(tensors: Any) -> bool:
    """False: no device talks to another here."""
    return False


def _to_all(
    inputs: Sequence[Any], outputs: Any = None, op: int = 0, streams: Any = None, comms: Any = None
) -> None:
    """`all_reduce`, `all_gather` and `reduce_scatter` among one."""
    source = _one(inputs)
    if outputs is not None:
        _one(outputs).copy_(source)


def reduce(
    inputs: Sequence[Any],
    output: Any = None,
    root: int = 0,
    op: int = 0,
    streams: Any = None,
    comms: Any = None,
    *,
    outputs: Any = None,
) -> None:
    """The sum of one."""
    source = _one(inputs)
    target = output if output is not None else _one(outputs) if outputs else source
    if target is not source:
        target.copy_(source)


def broadcast(inputs: Sequence[Any], root: int = 0, streams: Any = None, comms: Any = None) -> None:
    """What everybody has already."""
    _one(inputs)


_NCCL = ("NCCL", "there is one device; leave it out, or use torch.distributed with gloo")


# -- tuned products --------------------------------------------------------------------------

_TUNING = ("TunableOp", "leave it out; the device belongs to the broker, which chooses its kernels")


def _switch(val: bool = True) -> None:
    """Off, as it always is."""
    if val:
        raise refused(*_TUNING)


def _off() -> bool:
    return False


def _none() -> tuple[Any, ...]:
    return ()


_TUNABLE: dict[str, Any] = {
    "enable": _switch, "is_enabled": _off,
    "tuning_enable": _switch, "tuning_is_enabled": _off,
    "record_untuned_enable": _switch, "record_untuned_is_enabled": _off,
    "get_results": _none, "get_validators": _none,
} | dict.fromkeys(
    (
        "set_max_tuning_duration", "get_max_tuning_duration", "set_max_tuning_iterations",
        "get_max_tuning_iterations", "set_filename", "get_filename", "read_file",
        "set_rotating_buffer_size", "get_rotating_buffer_size", "set_numerical_check_tolerances",
        "tune_gemm_in_file", "mgpu_tune_gemm_in_file",
    ),
    _refuse(*_TUNING),
)  # fmt: skip


# -- the runtime, and files ------------------------------------------------------------------


class CudaError(RuntimeError):
    """An error of the CUDA runtime, by its number."""

    def __init__(self, code: int) -> None:
        super().__init__(f"CUDA error ({code})")


def check_error(res: int) -> None:
    """Raise what is not success."""
    if res:
        raise CudaError(res)


_STORAGE = ("GPUDirect Storage", "load into host memory, and move it by .cuda()")


class GdsFile:
    """Refused: load into host memory, and move it by .cuda()."""

    def __new__(cls, *args: Any, **kwargs: Any) -> "GdsFile":
        """Say so."""
        raise refused(*_STORAGE)


REPLACED: dict[str, dict[str, Any]] = {
    "": {"CudaError": CudaError, "check_error": check_error},
    "nccl": {
        "is_available": is_available, "version": _refuse(*_NCCL), "unique_id": _refuse(*_NCCL),
        "init_rank": _refuse(*_NCCL), "all_reduce": _to_all, "all_gather": _to_all,
        "reduce_scatter": _to_all, "reduce": reduce, "broadcast": broadcast,
    },
    "tunable": _TUNABLE,
    "gds": {
        "GdsFile": GdsFile, "gds_register_buffer": _refuse(*_STORAGE),
        "gds_deregister_buffer": _refuse(*_STORAGE),
    },
}  # fmt: skip
