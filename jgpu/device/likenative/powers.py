"""Powers: what torch's kernels say of exponents of integers, and which ops raise to a power."""

from typing import Any, Final

from jgpu.device.recording.ops import OpInfo
from jgpu.device.tensor import device_tensors

__all__ = ["check_power", "is_power", "looks_at_power"]

_POWERS: Final = ("aten::pow", "aten::pow_", "aten::_foreach_pow", "aten::_foreach_pow_")


def check_power(info: OpInfo, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Raise what torch's kernels of powers of integers say of their exponent."""
    exponent = kwargs.get("exponent", args[1] if len(args) > 1 else 0)
    if any(each < 0 for each in (exponent if isinstance(exponent, list) else (exponent,))):
        raise RuntimeError("Integers to negative integer powers are not allowed.")


def is_power(info: OpInfo) -> bool:
    """Whether it raises tensors to a power."""
    return info.name.partition(".")[0] in _POWERS


def looks_at_power(info: OpInfo, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether `check_power` has to look at each call: the exponent travels beside the program."""
    if not is_power(info) or info.positions.get("exponent") != 1:
        return False
    exponent = kwargs.get("exponent", args[1] if len(args) > 1 else None)
    whole = exponent if isinstance(exponent, list) else (exponent,)
    bases = device_tensors(args[:1])
    return all(type(each) is int for each in whole) and any(
        not (base.is_floating_point() or base.is_complex()) for base in bases
    )
