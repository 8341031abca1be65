"""Errors look as if torch's own C++ had raised them: no frame of this package in a traceback.

A function that catches an error, takes its own entry out of the error's traceback and raises it
again with a bare `raise` adds no entry: Python notes a frame where an error arises or passes
through, not where it is raised again. So what a notebook shows, in IPython, in pytest, by
`traceback.print_exc()`, are the notebook's lines, and torch's Python where it is there natively.

Covers the seams, where torch or the notebook calls into this package: `unseen` for functions,
`unseen_methods` for classes, `hide` where neither will do, as in a function that is called at each
step and spares itself the wrapper (`seam`). `JGPU_FULL_TRACEBACKS=1` in the environment shows
everything.
"""

import functools
import inspect
import os
import sys
from collections.abc import Callable
from types import FrameType, FunctionType, TracebackType
from typing import Any, Final, TypeVar

import torch

__all__ = [
    "AS_CALLER",
    "OURS",
    "TORCH",
    "hide",
    "is_unseen",
    "sealed",
    "seam",
    "unseen",
    "unseen_methods",
]

OURS: Final = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
TORCH: Final = os.path.dirname(os.path.abspath(torch.__file__)) + os.sep
_FULL: Final = os.environ.get("JGPU_FULL_TRACEBACKS", "") not in ("", "0")
#: the name of code that stands for the notebook's line (`warned`)
AS_CALLER: Final = "<as the caller>"
_MARK: Final = "_jgpu_unseen"

_Class = TypeVar("_Class", bound=type)


def unseen(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, whose frames and those it calls in this package show in no traceback.

    TorchScript, which would compile what it finds in place of torch's own function, is given the
    one that is wrapped (`functools.wraps`).
    """
    if is_unseen(function):
        return function

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except BaseException as error:
            hide(error, sys._getframe())
            raise

    return _marked(call, function)


def seam(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function that calls `hide` itself, with its own frame, for all that it raises.

    `unseen` gives it back as it is.
    """
    return _marked(function, function)


def _marked(call: Any, function: Callable[..., Any]) -> Callable[..., Any]:
    setattr(call, _MARK, call)  # itself, for `wraps` hands attributes on
    original = inspect.unwrap(function)
    if original is not function and isinstance(original, FunctionType):
        call.__prepare_scriptable__ = lambda: original
    made: Callable[..., Any] = call
    return made


def is_unseen(function: Any) -> bool:
    """Whether the function is one that `unseen` made."""
    return getattr(function, _MARK, None) is function


def unseen_methods(cls: _Class) -> _Class:
    """The class, with all functions and properties that it defines made `unseen`."""
    for name, value in list(vars(cls).items()):
        if isinstance(value, FunctionType):
            setattr(cls, name, unseen(value))
        elif isinstance(value, staticmethod | classmethod):
            setattr(cls, name, type(value)(unseen(value.__func__)))
        elif isinstance(value, property):
            get, put, drop = (
                each and unseen(each) for each in (value.fget, value.fset, value.fdel)
            )
            setattr(cls, name, property(get, put, drop, value.__doc__))
    return cls


def sealed(value: Any) -> Any:
    """A function or class of this package's, made unseen; anything else as it is."""
    if isinstance(value, FunctionType):
        return unseen(value)
    ours = isinstance(value, type) and value.__module__.startswith(__name__.partition(".")[0])
    return unseen_methods(value) if ours else value


def hide(error: BaseException, seam: FrameType) -> None:
    """Take this package's entries out of the error's traceback, and those of torch below them.

    `seam` is the frame that the notebook or torch called. Raise the error again by a bare `raise`.
    """
    if _FULL:
        return
    kept: list[TracebackType] = []
    below = False
    trace = error.__traceback__
    while trace is not None:
        file = trace.tb_frame.f_code.co_filename
        inside = below and file.startswith(TORCH)
        below = inside or file.startswith(OURS) or trace.tb_frame.f_code.co_name == AS_CALLER
        if not below:
            kept.append(trace)
        trace = trace.tb_next
    following = None
    for entry in reversed(kept):
        entry.tb_next = following
        following = entry
    error.__traceback__ = following
    _forget_inner(error, seam)


def _forget_inner(error: BaseException, seam: FrameType) -> None:
    """Errors that were met and dealt with on the way are none of the notebook's concern.

    What the notebook itself was handling when it called stays the error's context, as natively.
    """
    context = error.__context__
    while context is not None and _was_inside(context, seam):
        context = context.__context__
    error.__context__ = context
    cause = error.__cause__
    if cause is None or _was_inside(cause, seam):
        error.__cause__ = None
        error.__suppress_context__ = False


def _was_inside(error: BaseException, seam: FrameType) -> bool:
    """Whether an error was caught by the seam or by something that the seam called."""
    trace = error.__traceback__
    frame = trace.tb_frame if trace is not None else None
    if frame is None:
        return True  # nobody's line: it was hidden by an inner seam
    while frame is not None:
        if frame is seam:
            return True
        frame = frame.f_back
    return False
