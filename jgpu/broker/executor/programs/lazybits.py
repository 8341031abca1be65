"""Conjugated and negated tensors inside of ops that a mode of dispatch calls.

While a mode's handler runs, torch passes over what makes an op see such a tensor as the numbers
that it stands for: a kernel that conjugates something for itself then reads it unconjugated, and
returns other numbers than outside of the mode (a pseudoinverse of complex numbers does).
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import torch

__all__ = ["lazy_bits"]

_Set: Any = torch._C._SetExcludeDispatchKeyGuard
_KEYS: Final = torch._C.DispatchKey


@contextmanager
def lazy_bits() -> Iterator[None]:
    """Around a call from a handler: it computes as it does outside of the mode."""
    with _Set(_KEYS.Conjugate, False), _Set(_KEYS.Negative, False), _Set(_KEYS.ZeroTensor, False):
        yield
