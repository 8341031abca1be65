"""Orders and arguments that decide how long an op takes: loops that run once for each of them.

Recurrences of orthogonal polynomials take one step an order, zeta's one step for each unit that its
argument is below zero. Such calls are counted before they run, and refused past some 30 billion
steps of one multiplication, or 4 billion of a power: longer than minutes on one core. In the
hundreds, where such numbers mean something, nothing changes. Of NaN every polynomial is NaN, where
the kernels return a number that lay about in memory.

Where arguments are tensors on CUDA, the look waits for the device.
"""

from collections.abc import Callable
from typing import Any, Final

import torch

from jgpu.broker.executor.programs.checking.ops import OpSchema
from jgpu.broker.executor.programs.checking.trusted import Look
from jgpu.broker.executor.programs.precautions.language import Attempt, is_integral, precaution
from jgpu.wire.program import Geometry

__all__ = ["MOST_POWERS", "MOST_STEPS"]

#: multiplications of one call, and powers
MOST_STEPS: Final = 1 << 35
MOST_POWERS: Final = 1 << 32
#: orders up to which no tensor of a device is large enough to be looked at
_FEW: Final = 256
#: natural logarithm of the largest number, and what lies between it and the first overflow
_LARGEST: Final = 800.0
#: places in which whole numbers of 32 bits keep no fraction
_WHOLE: Final = 1 << 23


def _as_computed(value: Any, other: Any) -> torch.Tensor:
    """What the kernel sees of `value`, beside `other`, in double precision.

    A number goes through no smaller type than theirs: in that it might be a whole one. Of whole
    numbers they make floating point ones, never of 2^31 the -1 that its last bits are.
    """
    exact = torch.as_tensor(value, dtype=None if isinstance(value, torch.Tensor) else torch.float64)
    common = torch.result_type(value, other)
    seen = exact.to(torch.get_default_dtype() if is_integral(common) else common)
    return (seen.real if seen.is_complex() else seen).to(torch.float64)  # which kernels refuse


def _until_overflow(x: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
    """Steps outside of [-1, 1], where the values grow by a constant factor until they overflow."""
    outside = x.abs() > 1
    return torch.where(outside, torch.minimum(n, _LARGEST / x.abs().acosh()), 0)


def _chebyshev(x: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
    """Within [-1, 1] it is a cosine."""
    return _until_overflow(x, n)


def _shifted(x: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
    return _until_overflow(2 * x - 1, n)


def _legendre(x: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
    return torch.where(x.abs() < 1, n, _until_overflow(x, n))


def _laguerre(x: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
    return torch.where(x.isfinite() & (x != 0), n, 0)


def _refuse(attempt: Attempt, steps: torch.Tensor, most: int, why: str) -> None:
    total = float(steps.nan_to_num(nan=0.0, posinf=1e300).sum())
    if total > most:
        raise RuntimeError(
            f"{attempt.base} would take about {total:.1e} steps, because {why}. More than {most} "
            "are refused on the shared device: they take longer than minutes."
        )


def _recurring(steps_of: Callable[[torch.Tensor, torch.Tensor], torch.Tensor], *bases: str) -> None:
    @precaution(*(f"special_{base}" for base in bases), waits=True)
    def rule(attempt: Attempt) -> Any:
        given = attempt["x"], attempt["n"]
        x, n = _as_computed(*given), _as_computed(*reversed(given))
        if isinstance(attempt["n"], torch.Tensor) or not attempt["n"] <= _FEW:
            largest = float(n.nan_to_num(nan=0.0).amax()) if n.numel() else 0.0
            if largest * torch.broadcast_shapes(x.shape, n.shape).numel() > MOST_STEPS:
                why = f"its order is up to {largest:g}"
                _refuse(attempt, steps_of(x, n.clamp(min=0)), MOST_STEPS, why)
        result = attempt.go()
        # The kernels then leave the loop before they have a result, and return what they find.
        unknown = x.isnan().to(result.device) & (n >= 2).to(result.device)
        return result.masked_fill_(unknown, torch.nan)


_recurring(_chebyshev, *(f"chebyshev_polynomial_{kind}" for kind in "tuvw"))
_recurring(_shifted, *(f"shifted_chebyshev_polynomial_{kind}" for kind in "tuvw"))
_recurring(_legendre, "legendre_polynomial_p")
_recurring(_laguerre, "laguerre_polynomial_l")


def _upwards(attempt: Attempt, argument: Any, other: Any) -> None:
    """Zeta walks from its argument up to 9; whole numbers below zero are poles."""
    q = _as_computed(argument, other)
    steps = torch.where((q < -_WHOLE) & (q != q.floor()), -q, 0)
    _refuse(attempt, steps, MOST_POWERS, f"its argument is as low as {_least(q):g}")


def _least(q: torch.Tensor) -> float:
    return float(q.nan_to_num(nan=0.0).amin()) if q.numel() else 0.0


def _doubles(name: str) -> Callable[[OpSchema, Look], bool]:
    """Smaller types hold no fraction where it matters."""

    def condition(info: OpSchema, look: Look) -> bool:
        value = look[name]
        return not isinstance(value, Geometry) or value.dtype == "float64"

    return condition


@precaution("special_zeta", waits=True, when=_doubles("other"))
def _zeta(attempt: Attempt) -> Any:
    _upwards(attempt, attempt["other"], attempt["self"])
    return attempt.go()


@precaution("polygamma", "special_polygamma", waits=True, when=_doubles("self"))
def _polygamma(attempt: Attempt) -> Any:
    if attempt["n"] > 1:  # the first two are computed otherwise
        _upwards(attempt, attempt["self"], attempt["n"])
    return attempt.go()


def _many_decimals(info: OpSchema, look: Look) -> bool:
    decimals = look["decimals"] if "decimals" in look.names else 0
    return not isinstance(decimals, int) or abs(decimals) > _FEW


@precaution("round", "special_round", waits=False, when=_many_decimals)
def _rounded(attempt: Attempt) -> Any:
    """One product for each decimal; past the largest number they change nothing."""
    most = 1 << 10
    attempt["decimals"] = min(max(attempt["decimals"], -most), most)
    return attempt.go()
