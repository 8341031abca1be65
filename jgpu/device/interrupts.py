"""Signals' handlers, kept away from where an exception of theirs would tear something.

Every handler that is written in Python is wrapped: Ctrl-C's, and those that the notebook or a
library sets, for each may raise. It does what it did before, except in three places, from which it
is put off:

- In a block under `quiet`: where bytes move and ids are given. Blocking the signals would not do:
  another thread of the process takes them then, and Python raises in the main thread all the same.
- Where torch's C++ asks the device guard something. On its way there pybind11 makes a string, and
  Python looks for signals wherever one is made (`PyObject_Str`). Torch's function that asks may not
  throw: a KeyboardInterrupt there ends the process, and torch asks some 80 times a training step.
- Where what it raises would leave torch torn for good (`struck`), for half a minute at most: at the
  ends of blocks such as `torch.no_grad()`, and in imports that torch does by itself.

Whoever asks which handler there is (`signal.getsignal`) is told the one that was set.

Invariant: a handler is put off, never lost.
"""

import _signal  # type: ignore[import-not-found] # of C: `signal`'s are Python's
import ctypes
import os
import signal
import sys
import threading
from _thread import get_ident, interrupt_main, start_new_thread
from contextlib import suppress
from functools import lru_cache
from time import monotonic, sleep
from types import FrameType
from typing import Any, ClassVar, Final

from jgpu.accelerator import loading
from jgpu.device.struck import would_tear
from jgpu.device.tracebacks import hide, unseen

__all__ = ["QuietInPython", "install", "passed", "quiet"]

#: Python's own, which know the wrapped handlers
_raw_set: Final = _signal.signal
_raw_get: Final = _signal.getsignal
_LIBRARY: Final = ctypes.CDLL(None)
_MAIN: Final = threading.main_thread().ident
_DEPTH: Final = 48
#: when a signal is sent again: the guard is left in no time, an import takes long
_LATER_S: Final = 0.001
_LATER_FROM_TEARING_S: Final = 0.01
#: for how long a handler that would tear something is put off
_LIMIT_S: Final = 30.0
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


#: since when signals are put off that are to be sent again, and those of which a thread sees to it
_since: dict[int, float] = {}
_under_way: set[int] = set()
os.register_at_fork(after_in_child=_under_way.clear)


class _Handler:
    """The handler that was there, but for the places where it may not raise."""

    #: how often Ctrl-C was passed on to the handler that was there
    passed = 0

    def __init__(self, before: Any) -> None:
        self.before = before

    def __call__(self, number: int, frame: FrameType | None) -> Any:
        if quiet.put_off(number):
            return None
        if _in_guard():
            _put_off(number, _LATER_S)
        elif would_tear(frame) and monotonic() - _since.get(number, monotonic()) < _LIMIT_S:
            _put_off(number, _LATER_FROM_TEARING_S)
        else:
            _since.pop(number, None)
            _Handler.passed += number == signal.SIGINT
            try:
                return self.before(number, frame)
            except BaseException as error:
                hide(error, sys._getframe())
                raise
        return None


class QuietInPython:
    """Put signals' handlers off to the end of a block, in the main thread: the plain form."""

    __slots__ = ("_counts",)

    #: how many blocks the main thread is in, and the signals that struck meanwhile
    _depth: ClassVar[int] = 0
    _struck: ClassVar[set[int]] = set()
    #: handlers were wrapped in the main thread
    _installed: ClassVar[bool] = False

    def __enter__(self) -> None:
        self._counts = get_ident() == _MAIN
        if self._counts:
            if not QuietInPython._installed:
                install()
                QuietInPython._installed = True
            QuietInPython._depth += 1

    def __exit__(self, *reason: object) -> None:
        if self._counts:
            QuietInPython._depth -= 1
            if QuietInPython._struck and not QuietInPython._depth:
                QuietInPython._deal()

    @staticmethod
    def _deal() -> None:
        """Call the handler of one signal that was put off; Python calls those of the others."""
        struck: set[Any] = QuietInPython._struck
        try:
            for number in struck:
                handler = _raw_get(number)
                # Not sent once more: an event loop is told of each signal that comes.
                if callable(handler):
                    handler(number, sys._getframe(2))
                else:
                    struck.discard(number)
                break
        finally:
            any(map(interrupt_main, struck))  # noted until each is called: none costs another

    @staticmethod
    def put_off(number: int) -> bool:
        """Whether a signal, which struck now, has to wait: then it is noted."""
        if QuietInPython._depth:
            QuietInPython._struck.add(number)
            return True
        QuietInPython._struck.discard(number)
        return False

    @staticmethod
    def depth() -> int:
        """How many blocks the main thread is in."""
        return QuietInPython._depth


def passed() -> int:
    """How often Ctrl-C was passed on to the handler that was there."""
    return _Handler.passed


def install() -> None:
    """Wrap the handlers that are set now, and those that will be."""
    _signal.signal, _signal.getsignal = _set, _get  # what `signal`'s own functions call
    for number in signal.valid_signals():
        before = _raw_get(number)
        if callable(before) and not isinstance(before, _Handler):
            with suppress(ValueError):  # not the main thread of the main interpreter
                _raw_set(number, _Handler(before))


@unseen
def _set(number: int, handler: Any) -> Any:
    """`signal.signal`: the handler is wrapped, and the one before it is told bare."""
    if callable(handler) and not isinstance(handler, _Handler):
        handler = _Handler(handler)
    return _bare(_raw_set(number, handler))


@unseen
def _get(number: int) -> Any:
    """`signal.getsignal`: the handler as it was set."""
    return _bare(_raw_get(number))


def _bare(handler: Any) -> Any:
    return handler.before if isinstance(handler, _Handler) else handler


def _in_guard() -> bool:
    """Whether torch's C++ was making a string when Python looked for signals."""
    try:
        backtrace = _LIBRARY.backtrace
    except AttributeError:  # another C library
        return False
    stack = (ctypes.c_void_p * _DEPTH)()
    maker = False
    for address in stack[: backtrace(stack, _DEPTH)]:
        makes, asks = _known(address)
        if maker and asks:
            return True
        maker = makes
    return False


@lru_cache(maxsize=4096)
def _known(address: int | None) -> tuple[bool, bool]:
    """Whether code at an address is a maker of strings, and whether it is of who asks."""
    symbol = _Symbol()
    if not _LIBRARY.dladdr(ctypes.c_void_p(address), ctypes.byref(symbol)):
        return False, False
    return symbol.name in _MAKERS, _ASKER in (symbol.file or b"")


def _put_off(number: int, later_s: float) -> None:
    """Have the signal sent once more; on a thread of its own, one for all that come meanwhile."""
    _since.setdefault(number, monotonic())
    if number not in _under_way:
        _under_way.add(number)
        start_new_thread(_again, (number, later_s))


def _again(number: int, later_s: float) -> None:
    """Send the signal when what it may not tear is behind us, unless it was dealt with."""
    sleep(later_s)
    _under_way.discard(number)
    ident = threading.main_thread().ident
    if number not in _since or ident is None:
        return
    if callable(_raw_get(number)):  # else its default may end the process
        signal.pthread_kill(ident, number)


def _quiet() -> type[QuietInPython]:
    library = loading.load()
    if library is None:
        return QuietInPython
    made: type[QuietInPython] = library.quiet_of(_MAIN, install, _raw_get)
    return made


#: puts signals' handlers off to the end of a block: the accelerator's form, where there is one
quiet: Final = _quiet()
