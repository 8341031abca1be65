"""Plain numbers that decide how long an op takes or how many results it has, within reason.

These are ops that a notebook calls, and shapes do not bound what such numbers ask for: natively the
notebook alone would stand still, or use up the memory.
"""

from math import prod
from typing import Final

from jgpu.broker.executor.programs.contracts.language import Call, limit
from jgpu.wire.limits import MAX_DIMS, MAX_SLOTS

__all__: list[str] = []

#: places of a result without elements
_PLACES: Final = 1 << 24
#: far past the largest number
_DECIMALS: Final = 1 << 10


@limit("matrix_power", "linalg_matrix_power")
def _power(call: Call) -> None:
    """The kernel inverts and negates, and this number has no negative."""
    call.require(call["n"] > -(1 << 63), "its exponent is the least integer")


@limit(
    *("adaptive_max_pool1d", "adaptive_max_pool2d", "adaptive_max_pool3d"),
    *("adaptive_avg_pool1d", "adaptive_avg_pool2d", "adaptive_avg_pool3d"),
    *("_adaptive_avg_pool2d", "_adaptive_avg_pool3d"),
)
def _pooled(call: Call) -> None:
    """Kernels walk all places also where a size of 0 leaves nothing to write there."""
    size = call["output_size"]
    few = 0 not in size or prod(max(item, 1) for item in size) <= _PLACES
    call.require(few, f"output_size has 0 and more than {_PLACES} places")


_PADDED = tuple(f"{how}_pad{n}d" for how in ("replication", "reflection") for n in (1, 2, 3))


@limit(*_PADDED, *(f"{base}_backward" for base in _PADDED))
def _padded(call: Call) -> None:
    """These walk all rows, also where none has an element."""
    padding, shape = call["padding"], call["self"].shape
    added = [before + after for before, after in zip(padding[::2], padding[1::2], strict=True)]
    size = [shape[-1 - k] + more for k, more in enumerate(added[: len(shape)])]
    few = all(size) or prod(max(item, 1) for item in size) <= _PLACES
    call.require(few, f"it would have a size of 0 and more than {_PLACES} places")


@limit("fractional_max_pool2d", "fractional_max_pool3d")
def _pooled_at_random(call: Call) -> None:
    """Sizes below 0 pass the kernel's own look, which adds them up, and are walked."""
    for name in ("kernel_size", "output_size"):
        call.require(all(0 <= item < 1 << 31 for item in call[name]), f"{name} is {call[name]}")


@limit("range")
def _range(call: Call) -> None:
    """The kernel divides by the step in the type of the result."""
    if "out" in call and "step" in call and not call["out"].dtype.is_floating_point:
        step = call["step"]
        call.require(abs(step) >= 1, f"its step is {step}, which is 0 in {call['out'].dtype}")


@limit("round", "special_round")
def _rounded(call: Call) -> None:
    """What foretells this form computes that power of ten to its last digit."""
    if "out" in call and "decimals" in call:
        few = abs(call["decimals"]) <= _DECIMALS
        call.require(few, f"its decimals are at most {_DECIMALS}")


@limit("tensor_split")
def _split(call: Call) -> None:
    if "sections" in call:
        _parts(call, call["sections"])


@limit("unbind", "unbind_copy")
def _unbound(call: Call) -> None:
    _parts(call, _along(call))


@limit("chunk", "unsafe_chunk")
def _chunked(call: Call) -> None:
    _parts(call, min(call["chunks"], _along(call)))


@limit("split", "split_copy", "unsafe_split")
def _split_evenly(call: Call) -> None:
    if "split_size" in call and isinstance(call["split_size"], int):
        _parts(call, _along(call) // max(call["split_size"], 1))


@limit("hsplit", "vsplit", "dsplit")
def _split_along(call: Call) -> None:
    if "sections" in call:
        _parts(call, call["sections"])


def _along(call: Call) -> int:
    shape, dim = call["self"].shape, call["dim"]
    return shape[dim] if -len(shape) <= dim < len(shape) else 0


def _parts(call: Call, count: int) -> None:
    call.require(count <= MAX_SLOTS, f"it would return {count} tensors, at most {MAX_SLOTS} fit")


@limit("combinations")
def _combined(call: Call) -> None:
    """One dimension of a grid for each member."""
    call.require(call["r"] <= MAX_DIMS, f"r is at most {MAX_DIMS}")
