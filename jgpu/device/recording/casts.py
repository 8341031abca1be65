"""The casts of autocast inside composites that arrive whole.

Where autograd is off, as in inference mode, a composite reaches `__torch_dispatch__` as one op.
There the dispatcher excludes all keys above Python's, autocast's among them, so the ops that the
composite calls would not be cast. On CUDA they are. `as_outside` includes the key again, where
autocast was on when Python called the op.

Invariant: below a kernel of autocast nothing is cast, which the excluded keys no longer tell once
they were excluded by Python's key: such kernels run their op inside `Uncast`.
"""

import threading
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Final

import torch

__all__ = ["Casting", "Uncast", "as_outside"]

_C: Any = torch._C
_KEY: Final = _C.DispatchKey.AutocastPrivateUse1
_KEYS: Final = _C.DispatchKeySet(_KEY)
_Exclude: Any = _C._ExcludeDispatchKeyGuard
_NOTHING: Final = nullcontext()


class Casting:
    """Whether this process has enabled autocast, ever."""

    is_known = False


class _Thread(threading.local):
    #: whether a kernel of autocast runs its op
    is_below = False


_thread = _Thread()


class Uncast:
    """A context in which autocast casts nothing."""

    __slots__ = ("_before", "_guard")

    def __enter__(self) -> None:
        self._guard = _Exclude(_KEYS)
        self._guard.__enter__()
        self._before, _thread.is_below = _thread.is_below, True

    def __exit__(self, *reason: object) -> None:
        _thread.is_below = self._before
        self._guard.__exit__(None, None, None)


def as_outside() -> AbstractContextManager[Any]:
    """Return a context in which ops are cast if they would be outside of `__torch_dispatch__`."""
    if not Casting.is_known or _thread.is_below or not _is_on_outside():
        return _NOTHING
    excluded = _C._dispatch_tls_local_exclude_set().remove(_KEY)
    made: AbstractContextManager[Any] = _C._ForceDispatchKeyGuard(
        _C._dispatch_tls_local_include_set(), excluded
    )
    return made


def _is_on_outside() -> bool:
    """Whether the key was included when Python called the op; false without such a call."""
    try:
        with _C._RestorePythonTLSSnapshot():
            return not _C._dispatch_tls_local_exclude_set().has(_KEY)
    except RuntimeError:
        return False
