"""Ctrl-C, kept away from where it would tear something.

The handler of SIGINT is wrapped in the main thread. It does what it did before, except in two
places, from which it is put off:

- In a block under `quiet`: where bytes move and ids are given. Blocking the signal would not do:
  another thread of the process takes it then, and Python raises in the main thread all the same.
- Where torch's C++ asks the device guard something. On its way there pybind11 makes a string, and
  Python looks for signals wherever one is made (`PyObject_Str`). Torch's function that asks may not
  throw: a KeyboardInterrupt there ends the process, and torch asks some 80 times a training step.

Invariant: an interrupt is put off, never lost.
"""

import ctypes
import signal
import sys
import threading
from _signal import (  # type: ignore[import-not-found] # of C: `signal`'s are Python's
    SIGINT,
    default_int_handler,
    getsignal,
    raise_signal,
)
from _thread import get_ident, start_new_thread
from contextlib import suppress
from time import sleep
from types import FrameType
from typing import Any, ClassVar, Final

from jgpu.accelerator import loading
from jgpu.device.tracebacks import hide

__all__ = ["QuietInPython", "install", "passed", "quiet"]

_MAIN: Final = threading.main_thread().ident
_DEPTH: Final = 48
_LATER_S: Final = 0.001
#: what looks for signals on the way to the guard, and the library that asks. The names of the
#: guard's own functions are not in the library's table.
_MAKERS: Final = (b"PyObject_Str", b"PyObject_Repr")
_ASKER: Final = b"libtorch_python"


class _Symbol(ctypes.Structure):
    """`Dl_info` of <dlfcn.h>."""

    _fields_ = (
        ("file", ctypes.c_char_p),
        ("base", ctypes.c_void_p),
        ("name", ctypes.c_char_p),
        ("address", ctypes.c_void_p),
    )


class _Handler:
    """The handler that was there, but for the places where it may not raise."""

    #: how often the handler that was there was called
    passed = 0

    def __init__(self, before: Any) -> None:
        self.before = before

    def __call__(self, number: int, frame: FrameType | None) -> Any:
        if quiet.put_off():
            return None
        if _in_guard():
            start_new_thread(_again, ())
        else:
            _Handler.passed += 1
            try:
                return self.before(number, frame)
            except BaseException as error:
                hide(error, sys._getframe())
                raise
        return None


class QuietInPython:
    """Put Ctrl-C off to the end of a block, in the main thread: the plain form of `quiet`."""

    __slots__ = ("_counts",)

    #: how many blocks the main thread is in, and whether Ctrl-C struck meanwhile
    _depth: ClassVar[int] = 0
    _struck: ClassVar[bool] = False

    def __enter__(self) -> None:
        self._counts = get_ident() == _MAIN
        if self._counts:
            if getsignal(SIGINT) is default_int_handler:  # somebody has set it anew
                install()
            QuietInPython._depth += 1

    def __exit__(self, *reason: object) -> None:
        if self._counts:
            QuietInPython._depth -= 1
            if QuietInPython._struck and not QuietInPython._depth:
                QuietInPython._struck = False
                raise_signal(SIGINT)

    @staticmethod
    def put_off() -> bool:
        """Whether Ctrl-C, which struck now, has to wait: then it is noted."""
        if QuietInPython._depth:
            QuietInPython._struck = True
        return QuietInPython._depth > 0

    @staticmethod
    def depth() -> int:
        """How many blocks the main thread is in."""
        return QuietInPython._depth


def passed() -> int:
    """How many interrupts were passed on to the handler that was there."""
    return _Handler.passed


def install() -> None:
    """Wrap the handler of SIGINT that is set now, if it is Python's."""
    before = signal.getsignal(SIGINT)
    if callable(before) and not isinstance(before, _Handler):
        with suppress(ValueError):  # not the main thread of the main interpreter
            signal.signal(SIGINT, _Handler(before))


def _in_guard() -> bool:
    """Whether torch's C++ was making a string when Python looked for signals."""
    library = ctypes.CDLL(None)
    try:
        backtrace, dladdr = library.backtrace, library.dladdr
    except AttributeError:  # another C library
        return False
    stack = (ctypes.c_void_p * _DEPTH)()
    symbol = _Symbol()
    maker = False
    for k in range(backtrace(stack, _DEPTH)):
        known = dladdr(ctypes.c_void_p(stack[k]), ctypes.byref(symbol))
        if known and maker and _ASKER in (symbol.file or b""):
            return True
        maker = bool(known) and symbol.name in _MAKERS
    return False


def _again() -> None:
    """Send the signal once more when the guard is behind us; on a thread of its own."""
    sleep(_LATER_S)
    ident = threading.main_thread().ident
    if ident is not None:
        signal.pthread_kill(ident, SIGINT)


def _quiet() -> type[QuietInPython]:
    library = loading.load()
    if library is None:
        return QuietInPython
    asked = getsignal, default_int_handler, raise_signal, install
    made: type[QuietInPython] = library.quiet_of(_MAIN, SIGINT, *asked)
    return made


#: puts Ctrl-C off to the end of a block: the accelerator's form, where there is one
quiet: Final = _quiet()
