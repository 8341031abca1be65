"""The backend's device guard and the wrapped backward engine: errors inside backward stay errors.

While a Python error is pending, torch's C++ asks our guard for its type from a function that may
not throw; a guard that throws there ends the process. So `type_` first clears a pending error and
keeps it, and the wrapper around the engine raises it again. Backward runs in the calling thread:
every thread sets that for itself at its first backward.
"""

import ctypes
import threading
from typing import Any

import torch

__all__ = ["Guard", "install_engine"]

_DEVICE_TYPE = torch._C._autograd.DeviceType.PrivateUse1  # type: ignore[attr-defined]
_pending = ctypes.pythonapi.PyErr_Occurred
_pending.restype = ctypes.c_void_p
_pending.argtypes = []
_stash: list[BaseException] = []
_thread = threading.local()


class Guard(torch._C._acc.DeviceGuard):
    """Answers what type of device this is, whatever else is going on."""

    def type_(self) -> Any:
        """PrivateUse1; a pending error is moved aside first (see the module)."""
        try:
            _pending()
        except BaseException as error:
            _stash.append(error)
        return _DEVICE_TYPE


def install_engine() -> None:
    """Wrap torch's one entry into the backward engine."""
    import torch.autograd.graph as graph

    original = graph._engine_run_backward

    def run_backward(t_outputs: Any, *args: Any, **kwargs: Any) -> Any:
        if not getattr(_thread, "ready", False):
            torch.autograd.set_multithreading_enabled(False)  # type: ignore[attr-defined]
            _thread.ready = True
        before = len(_stash)
        try:
            result = original(t_outputs, *args, **kwargs)
        except BaseException as error:
            kept = _stash[before:]
            del _stash[before:]
            first = kept[0] if kept else error
            if first is not error and not isinstance(first, type(None)):
                raise first from (error.__cause__ if error.__cause__ is not first else None)
            raise
        if len(_stash) > before:
            kept = _stash[before:]
            del _stash[before:]
            raise kept[0]
        return result

    graph._engine_run_backward = run_backward
    torch.autograd._engine_run_backward = run_backward  # type: ignore[attr-defined]
