"""The backend's device guard and the wrapped backward engine: errors inside backward stay errors.

Torch's C++ asks our guard for its type from a function that may not throw, some 80 times a step of
training, and also while a Python error is pending; a guard that throws there ends the process. So
the answer first takes what is pending aside, and the wrapper around the engine raises it again.
Backward runs in the calling thread: every thread sets that for itself at its first backward.

Ctrl-C strikes where a Python function begins, before any `try` of its own. So the answer is no
function but a generator that is resumed: the place where that may raise lies inside its `try`.
"""

import ctypes
import functools
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from operator import methodcaller
from typing import Any

import torch

from jgpu.device.hooks import gradients
from jgpu.device.interrupts import passed
from jgpu.device.tracebacks import unseen

__all__ = ["BackwardGuard", "around_backward", "install_engine", "raise_kept"]

_DEVICE_TYPE = torch._C._autograd.DeviceType.PrivateUse1
_pending = ctypes.pythonapi.PyErr_Occurred
_pending.restype = ctypes.c_void_p
_pending.argtypes = []


def _answers(kept: list[BaseException]) -> Iterator[Any]:
    """PrivateUse1, whatever is pending; see the module."""
    while True:
        try:
            while True:
                yield _DEVICE_TYPE
                _pending()
        except GeneratorExit:
            return
        except BaseException as error:
            kept.append(error)


class _Here(threading.local):
    """A thread's own: a generator cannot be resumed by two."""

    #: Each thread's own hides it. A name that a type has not is looked for in all of its bases, and
    #: if an error is pending then, Python clears it, unless it still knows from before.
    answer: Callable[[], Any] | None = None

    def __init__(self) -> None:
        #: errors that were taken aside
        self.kept: list[BaseException] = []
        self.answer = _answers(self.kept).__next__
        #: whether backward was set to run in this thread, and whether it does now
        self.ready = False
        self.inside = False


_here = _Here()


class BackwardGuard(torch._C._acc.DeviceGuard):
    """Answers what type of device this is, whatever else is going on."""

    #: `_here.answer()`, without a line of Python: nothing strikes on the way there, and a lookup
    #: that calls nothing works while an error is pending
    type_ = staticmethod(partial(methodcaller("answer"), _here))


class _Around:
    #: makes what each backward runs inside of
    make: Callable[[], AbstractContextManager[Any]] = nullcontext


def around_backward(make: Callable[[], AbstractContextManager[Any]]) -> None:
    """Have each backward from here on run inside of such a context."""
    _Around.make = staticmethod(make)


def raise_kept() -> None:
    """Raise what struck outside of backward where it could not be raised."""
    if _here.kept and not _here.inside:
        raise _here.kept.pop(0)


def _name_types(error: BaseException) -> None:
    """The engine names a tensor's type by the backend's own name."""
    if type(error) is RuntimeError:
        text = re.sub(r"\bcuda(\w+)Type\b", r"torch.cuda.\1Tensor", str(error))
        error.args = (text, *error.args[1:])


def install_engine() -> None:
    """Wrap torch's one entry into the backward engine."""
    import torch.autograd.graph as graph

    original = graph._engine_run_backward

    @functools.wraps(original)
    def run_backward(t_outputs: Any, given: Any = (), *args: Any, **kwargs: Any) -> Any:
        here = _here
        if not here.ready:
            torch.autograd.set_multithreading_enabled(False)
            here.ready = True
        kept = here.kept
        before, outer, interrupts = len(kept), here.inside, passed()
        here.inside = True
        try:
            if _Around.make is nullcontext:
                result = original(t_outputs, gradients.of_roots(t_outputs, given), *args, **kwargs)
            else:
                with _Around.make():
                    placed = gradients.of_roots(t_outputs, given)
                    result = original(t_outputs, placed, *args, **kwargs)
        except BaseException as error:
            first = kept[before] if len(kept) > before else error
            del kept[before:]
            if first is not error:
                raise first from (error.__cause__ if error.__cause__ is not first else None)
            if isinstance(error, SystemError) and passed() > interrupts:
                raise KeyboardInterrupt from None  # it was lost on its way through C++
            _name_types(error)
            raise
        finally:
            here.inside = outer
        if len(kept) > before:
            first = kept[before]
            del kept[before:]
            raise first
        return result

    graph._engine_run_backward = unseen(run_backward)
    torch.autograd._engine_run_backward = graph._engine_run_backward  # type: ignore[attr-defined]
