"""Who is right where native and the device differ: double precision, or CUDA's own types.

Kernels of the CPU round halves in other places than CUDA's, and return statistics in half where
CUDA's are single. A difference is no fault where native is further from double precision; types are
CUDA's where the device's bits are those that its kernels give at once.
"""

from typing import Any, Final

import torch
from told import Told

__all__ = ["excused", "has_halves", "typed_as"]

_SINGLE: Final = (torch.float32, torch.bfloat16, torch.float16)


def typed_as(native: Told, told: Told) -> Told | None:
    """The device's results in native's types, where those are halves and its are single.

    None where nothing is.
    """
    if native.error or told.error or len(native.leaves) != len(told.leaves):
        return None
    pairs = [*zip(native.leaves, told.leaves, strict=True)]
    if not any(_is_halved(*pair) for pair in pairs):
        return None
    return Told(
        [(have[0].to(want[0].dtype), *have[1:]) if _is_halved(want, have) else have
         for want, have in pairs]
    )  # fmt: skip


def has_halves(told: Told) -> bool:
    """Whether numbers of less than single precision are among what a call gave."""
    return any(isinstance(leaf, tuple) and leaf[0].dtype in _SINGLE[1:] for leaf in told.leaves)


def _is_halved(expected: Any, found: Any) -> bool:
    if not (isinstance(expected, tuple) and isinstance(found, tuple)):
        return False
    return expected[0].dtype in _SINGLE[1:] and found[0].dtype is torch.float32


def excused(wider: Told, native: Told, told: Told, *, at_worst: bool = False) -> Told:
    """A run's results, with native's numbers where those are no nearer to double precision's.

    With `at_worst`: where they are off by no more of their tensor's largest number than twice what
    native is anywhere, or, of halves, than one rounding is. Two orders of the same sums differ by
    as much: gradients of a decoder layer of 4 features were 1.4e-3 off natively, 1.6e-3 by CUDA's
    order, both with the largest number 86.
    """
    sides = (wider, native, told)
    if any(side.error or len(side.leaves) != len(told.leaves) for side in sides):
        return told
    leaves = [*zip(wider.leaves, native.leaves, told.leaves, strict=True)]
    part = None
    if at_worst:
        part = 2 * max((_off(exact, of) for exact, of, _ in leaves), default=0.0)
    return Told([_excused(*each, part) for each in leaves])


def _is_widened(exact: Any, of: Any) -> bool:
    if not all(isinstance(leaf, tuple) for leaf in (exact, of)):
        return False
    wide, single = exact[0], of[0]
    bits = [torch.finfo(each.dtype).bits for each in (wide, single) if each.is_floating_point()]
    return len(bits) == 2 and bits[0] > bits[1] and wide.shape == single.shape and wide.numel() > 0


def _off(exact: Any, of: Any) -> float:
    """The largest deviation from double precision, as a part of the largest number."""
    if not _is_widened(exact, of):
        return 0.0
    wide = exact[0].double()
    largest = wide.abs().max()
    return float((of[0].double() - wide).abs().max() / largest) if largest > 0 else 0.0


def _excused(exact: Any, expected: Any, found: Any, part: float | None) -> Any:
    if not (_is_widened(exact, expected) and _is_widened(exact, found)):
        return found
    wide, want, (have, *geometry) = exact[0].double(), expected[0], found
    if part is None:
        most = (want.double() - wide).abs()
    else:
        once = torch.finfo(want.dtype).eps if want.dtype in _SINGLE[1:] else 0.0
        most = max(part, once) * wide.abs().max()
    return torch.where((have.double() - wide).abs() <= most, want, have), *geometry
