"""Errors as torch users know them: classes that are torch's and jgpu's at once."""

import linecache
from collections.abc import Callable
from typing import Any

import torch

from jgpu import errors
from jgpu.wire import messages as m

__all__ = [
    "DeviceIndexError",
    "DeviceLinAlgError",
    "DeviceOutOfMemory",
    "NoKernel",
    "anew",
    "asked_for",
    "from_failure",
    "no_kernel",
    "on_its_line",
    "refused",
    "use_of_lost",
]


class DeviceOutOfMemory(errors.QuotaExceeded, torch.OutOfMemoryError):
    """More device memory than this user may have, or than the device has."""

    reason = "out_of_memory"


class NoKernel(errors.NotSupported, NotImplementedError):
    """An op of a library has no kernel that can run for device tensors."""


class DeviceIndexError(errors.WorkFailed, IndexError):
    """An index outside its range, found on the device."""

    reason = "index"


_LinAlgError: type[RuntimeError] = torch.linalg.LinAlgError  # type: ignore[attr-defined]


class DeviceLinAlgError(errors.WorkFailed, _LinAlgError):  # type: ignore[misc,valid-type]
    """A factorization that did not succeed, found on the device."""

    reason = "linalg"


def refused(what: str, instead: str) -> errors.NotSupported:
    """The shared device cannot do `what`; `instead` says what to do."""
    return errors.NotSupported(f"The shared device does not support {what}: {instead}.")


def no_kernel(name: str, instead: str) -> NoKernel:
    """The op of a library cannot run; in torch's words where it has no kernel for CUDA."""
    text = str(refused(name, instead))
    if not torch._C._dispatch_has_kernel_for_dispatch_key(name, "CUDA"):
        text = f"Could not run '{name}' with arguments from the 'CUDA' backend. {text}"
    return NoKernel(text)


def anew(failure: BaseException) -> BaseException:
    """A failure to be raised; the one that is kept must not keep the frames that it went through.

    They hold tensors, and these what is known of their failures.
    """
    made = type(failure)(*failure.args)
    if isinstance(made, errors.WorkFailed) and isinstance(failure, errors.WorkFailed):
        made.op, made.native = failure.op, failure.native
    return made


def use_of_lost(session: Any, buffer: Any) -> BaseException:
    """The error of using a tensor whose computation failed or whose device is gone."""
    cause: BaseException | None = None
    if buffer.graveyard is session.buffers.graveyard:
        cause = session.buffers.poisoned.get(buffer.id)
    if cause is not None:
        # Of a lost device it is never said that a computation failed.
        if session.requests.tell(cause) or isinstance(cause, errors.DeviceLost):
            return anew(cause)
        return errors.PoisonedTensor(
            f"This tensor has no value, because its computation failed earlier: {cause}"
        )
    why = session.connection.why_lost or "The broker or its device ended."
    text = f"This tensor was on a device that is gone. {why}"
    return errors.DeviceLost(session.connection.on_lost(text))


_CLASSES: dict[str, type[errors.JgpuError]] = {
    "BudgetExceeded": errors.BudgetExceeded,
    "DeviceLost": errors.DeviceLost,
    "HeldOff": errors.HeldOff,
    "IndexError": DeviceIndexError,
    "_LinAlgError": DeviceLinAlgError,
    "OutOfMemoryError": DeviceOutOfMemory,
    "ProgramRefused": errors.ProgramRefused,
    "WorkCancelled": errors.WorkCancelled,
    "cancelled": errors.WorkCancelled,
}
#: failures for which no op is to blame, nor a line of the notebook
_NO_OPS = (errors.BudgetExceeded, errors.DeviceLost, errors.HeldOff, errors.WorkCancelled)


def from_failure(
    failure: m.Failed, place: tuple[str, int] | None, explain_memory: Callable[[], str]
) -> errors.JgpuError:
    """The exception of a failure that the executor reported, naming op and notebook line.

    Where memory was short, `explain_memory` says what the notebook has.
    """
    kind = _CLASSES.get(failure.error)
    if kind in _NO_OPS:
        return kind(failure.text)
    text = f"{failure.text} (in {failure.name or 'an op'} on the shared device{_where(place)})"
    if kind is None:
        kind = _mixed(failure.error)
    elif kind is DeviceOutOfMemory:
        text = f"{text} {explain_memory()}"
    error = kind(text)
    if isinstance(error, errors.WorkFailed):
        error.native = _native(type(error), failure.text)
        error.op = failure.name
    return error


def on_its_line(error: BaseException) -> BaseException:
    """A failure as native PyTorch raises it, for the line that called the op that failed."""
    native = error.native if isinstance(error, errors.WorkFailed) else None
    return anew(error if native is None else native)


def _native(kind: type[BaseException], text: str) -> BaseException | None:
    """The error of native PyTorch that a class of ours stands for; None where only we raise it."""
    if kind is errors.WorkFailed:
        return RuntimeError(text)
    if kind is errors.ProgramRefused:
        return None
    made: BaseException = kind.__bases__[1](text)
    return made


def _mixed(name: str) -> type[errors.JgpuError]:
    """WorkFailed that is also the builtin exception of that name, where there is one."""
    builtin = getattr(__import__("builtins"), name, None)
    if not (isinstance(builtin, type) and issubclass(builtin, Exception)):
        return errors.WorkFailed
    if issubclass(errors.WorkFailed, builtin):
        return errors.WorkFailed
    try:
        made = type(f"Device{name}", (errors.WorkFailed, builtin), {"reason": "work_failed"})
    except TypeError:
        return errors.WorkFailed
    _CLASSES[name] = made
    return made


def asked_for(place: tuple[str, int] | None) -> str:
    """A sentence that names the notebook's line; empty if it is not known."""
    where = _where(place).removeprefix(", ")
    return f" It was {where}." if where else ""


def _where(place: tuple[str, int] | None) -> str:
    if place is None:
        return ""
    filename, line = place
    source = linecache.getline(filename, line).strip()
    return f", asked for at line {line}: {source}" if source else f", asked for at line {line}"
