"""Warnings name the notebook's line, as natively, where torch's C++ warns at the frame that called.

Two ways. A function of C++ that this package wraps is called as from the notebook's own line
(`as_caller`), if what it is given may make it warn. What kernels would warn of is collected where
an op is inferred, on meta tensors and for a few ops on small ones of the host, and told at each
call (`tell`).

Does not cover what kernels warn of by the values that they see.
"""

import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from types import CodeType, FrameType, FunctionType
from typing import Any, Final

import torch

from jgpu.device.tracebacks import AS_CALLER, OURS, TORCH

__all__ = [
    "as_caller",
    "collected",
    "is_told_once",
    "of_kernels",
    "scoped",
    "still_holds",
    "tell",
    "tell_resized",
]

Said = tuple[tuple[type[Warning], str], ...]


def caller() -> FrameType:
    """The frame that called this package, or torch on the way here through this package.

    A program that is part of this package is called by nobody; then it is the program's outermost.
    """
    frame: FrameType | None = sys._getframe()
    found = None
    while frame is not None:
        file = frame.f_code.co_filename
        if file.startswith(OURS) or frame.f_code.co_name == AS_CALLER:
            found = frame.f_back or frame
        elif not file.startswith(TORCH):
            break
        frame = frame.f_back
    assert found is not None
    return found


_code: CodeType = (lambda function, args, kwargs: function(*args, **kwargs)).__code__


def as_caller(function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """Call a function of C++ whose warnings are to name the line that called this package."""
    frame = caller()
    code = _code.replace(
        co_name=AS_CALLER,
        co_filename=frame.f_code.co_filename,
        co_firstlineno=frame.f_lineno,
    )
    return FunctionType(code, frame.f_globals)(function, args, kwargs)


class _Scope(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, call: Callable[[], Any]) -> None:
        call()


def scoped(call: Callable[[], Any]) -> Any:
    """What the call returns; what C++ warns of meanwhile is told at its end.

    Else it is told at the end of the outermost of torch's functions, which the notebook called. An
    error may not be on its way then.
    """
    failed: list[BaseException] = []
    made: list[Any] = []

    def run() -> None:
        try:
            made.append(call())
        except BaseException as error:
            failed.append(error)

    _Scope.apply(run)
    if failed:
        raise failed.pop()
    return made.pop()


@contextmanager
def collected() -> Iterator[list[tuple[type[Warning], str]]]:
    """What is warned of inside is kept for `tell`, and shown to nobody yet."""
    said: list[tuple[type[Warning], str]] = []
    with warnings.catch_warnings(record=True) as met:
        warnings.simplefilter("always")
        yield said
    # Of what is resized `outs` tells, in the words of torch's C++.
    texts = [(each.category, str(each.message)) for each in met]
    said += [each for each in texts if not each[1].startswith(_RESIZED)]


_RESIZED: Final = "An output with one or more elements was resized since it had shape "


def tell_resized(before: Sequence[int], after: Sequence[int]) -> None:
    """Warn of an `out=` that had elements and another shape than the result."""
    text = (
        f"{_RESIZED}{list(before)}, which does not match the required output shape {list(after)}. "
        "This behavior is deprecated, and in a future PyTorch release outputs will not be resized "
        "unless they have zero elements. You can explicitly reuse an out tensor t by resizing it, "
        "inplace, to zero elements with t.resize_(0)."
    )
    if 0 not in before:
        tell(((UserWarning, text),))


def tell(said: Said) -> None:
    """Warn at the caller's line."""
    frame = caller()
    names = frame.f_globals
    registry = names.setdefault("__warningregistry__", {})
    where = frame.f_code.co_filename, frame.f_lineno, names.get("__name__", "<string>")
    for category, text in said:
        file, line, module = where
        warnings.warn_explicit(text, category, file, line, module, registry)


# -- what only kernels say ---------------------------------------------------------------------

#: these warn by their sizes, at each call
_BY_SIZE: Final = {
    "aten::std.correction", "aten::var.correction", "aten::std_mean.correction",
    "aten::var_mean.correction",
}  # fmt: skip
#: these warn of themselves or by types, at the first call
_ONCE: Final = {"aten::cholesky", "aten::triangular_solve", "aten::_to_copy", "aten::copy_"}


def of_kernels(name: str, dtypes: set[torch.dtype], on_host: Callable[[bool], None]) -> Said:
    """What the host's own kernel warns of; `on_host` calls it, in the op's own sizes or in ones."""
    copies = name in ("aten::_to_copy", "aten::copy_")
    if name not in _BY_SIZE | _ONCE or (copies and not any(each.is_complex for each in dtypes)):
        return ()
    with collected() as said, suppress(RuntimeError):
        on_host(name in _BY_SIZE)
    return tuple(said)


def is_told_once(name: str) -> bool:
    """Whether torch warns of such an op once in a process."""
    return name in _ONCE and not torch.is_warn_always_enabled()


def still_holds(name: str, kwargs: dict[str, Any], reduced: int) -> bool:
    """Whether a warning that was collected is true of this call's numbers, too."""
    if name not in _BY_SIZE:
        return True
    correction = kwargs.get("correction")
    return bool(reduced <= (1 if correction is None else correction))
