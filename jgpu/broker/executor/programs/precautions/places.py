"""Places that a kernel writes to without a look whether they exist."""

from typing import Any

import torch

from jgpu.broker.executor.programs.checking.ops import OpSchema
from jgpu.broker.executor.programs.checking.trusted import Look
from jgpu.broker.executor.programs.precautions.language import Attempt, precaution

__all__: list[str] = []

#: numbers of `padding_mode`: what lies outside is zero, the border, or a reflection
_ZEROS, _BORDER = 0, 1


def _clipped(info: OpSchema, look: Look) -> bool:
    padded: bool = look["padding_mode"] != _ZEROS and look["grid"].dtype == "float64"
    return padded


@precaution("grid_sampler_2d_backward", waits=True, when=_clipped, on=("cpu",))
def _sampled(attempt: Attempt) -> Any:
    """NaN is clipped to no place at all: it counts as the middle, and its own gradient is NaN.

    In single precision the kernel sees to it; natively double precision ends the process.
    """
    grid = attempt["grid"]
    nowhere = grid.isnan() if attempt["padding_mode"] == _BORDER else ~grid.isfinite()
    if not nowhere.any():
        return attempt.go()
    attempt["grid"] = grid.masked_fill(nowhere, 0)
    made = attempt.go()
    if made[1] is not None and made[1].shape == grid.shape:
        made[1].masked_fill_(nowhere, torch.nan)
    return made


@precaution("_scaled_dot_product_efficient_attention_backward", waits=False, on=("cuda",))
def _with_state_on_host(attempt: Attempt) -> Any:
    """Seed and offset of dropout, which the kernel's launch reads from host memory as they are.

    So they are where the forward op leaves them; an address on the device would end the process.
    """
    for name in ("philox_seed", "philox_offset"):
        _require(attempt, name, torch.device("cpu"))
    return attempt.go()


@precaution("_scaled_dot_product_flash_attention_backward", waits=False, on=("cuda",))
def _with_state_on_device(attempt: Attempt) -> Any:
    """The same of a kernel that reads both, from one tensor, on the device."""
    _require(attempt, "philox_seed", attempt["query"].device)
    return attempt.go()


def _require(attempt: Attempt, name: str, place: torch.device) -> None:
    found = attempt[name].device
    if attempt["dropout_p"] and found != place:
        raise RuntimeError(
            f"{attempt.name}: {name} is on {found} where the kernel reads it on {place}. Pass what "
            "the forward op returned."
        )


def _by_tensor(info: OpSchema, look: Look) -> bool:
    return "repeats" in look.names and not isinstance(look["repeats"], int)


@precaution("repeat_interleave", waits=True, when=_by_tensor)
def _repeated(attempt: Attempt) -> Any:
    """Repetitions so many that their sum wraps around."""
    repeats = attempt["repeats"]
    if repeats.numel() and not repeats.is_floating_point():
        if bool((repeats < 0).any()):  # CUDA's kernel asserts that
            raise RuntimeError("repeats can not be negative")
        total = float(repeats.sum(dtype=torch.float64))
        if total >= 1 << 62:
            raise RuntimeError(f"repeats add up to {total:.3g}, which is more than any tensor has.")
    return attempt.go()
