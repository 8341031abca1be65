"""Notebook cells, where IPython runs: start and end told to the broker, lines noted for errors.

The hooks fire for user cells only and on the thread that runs them. Without IPython a script is one
long cell. Nothing is displayed.
"""

import asyncio
import functools
import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress
from types import FrameType
from typing import Any

import torch
from torch import nn

from jgpu.device import current
from jgpu.device.hooks import ipython
from jgpu.device.interrupts import quiet
from jgpu.device.tensor import DeviceTensor

__all__ = ["install", "lost_names"]

#: seconds after a cell in which the next one may begin before anything is done on the side
_PAUSE_S = 0.3
_running = 0


def install() -> None:
    """Hook IPython's events, now or as soon as there is a shell."""
    current.session.connection.on_lost = _explain
    found = ipython.shell()
    if found is not None:
        _hook(found)
    current.session.log.find_frame = _find_frame


def _hook(shell: Any) -> None:
    shell.events.register("pre_run_cell", _started)
    shell.events.register("post_run_cell", _ended)
    shell.run_code = _by_statement(shell.run_code)
    if shell.find_line_magic("jgpu") is None:  # under `jgpu run`; kernels have it from their start
        shell.register_magic_function(_jgpu, "line", "jgpu")


def _jgpu(line: str) -> None:
    from jgpu.device.magics import command

    command.run(line)


def _explanation() -> str | None:
    from jgpu.device.magics import command

    return command.run.__doc__


_jgpu.getdoc = _explanation  # type: ignore[attr-defined] # where IPython looks first


def _by_statement(run_code: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    """IPython compiles each statement of a cell by itself, so that each has a frame of its own."""

    @functools.wraps(run_code)
    async def run_statement(*args: Any, **kwargs: Any) -> Any:
        current.session.log.forget_frame()
        try:
            return await run_code(*args, **kwargs)
        finally:
            current.session.log.forget_frame()  # one that ran a cell itself goes on

    return run_statement


def _started(info: Any) -> None:
    global _running
    _running += 1
    if _only_asks(info.raw_cell):
        return
    shell = ipython.shell()
    current.session.progress.begin_cell(str(shell.execution_count if shell else ""))


def _only_asks(code: str | None) -> bool:
    """Whether a cell is `%jgpu` alone: no reason to bring back what was moved to the host.

    Nor to wait for a thread that computes, where it runs beside another cell.
    """
    lines = (code or "").split("\n")
    return any(lines) and all(line.startswith("%jgpu") or not line.strip() for line in lines)


def _ended(result: Any) -> None:
    global _running
    _running = max(0, _running - 1)  # the cell that imports torch was not counted
    if not current.is_warm():
        with suppress(RuntimeError):  # no loop runs in IPython's terminal
            asyncio.get_running_loop().call_later(_PAUSE_S, _warm_between_cells)
    info = getattr(result, "info", None)
    if _only_asks(getattr(info, "raw_cell", None)):
        return
    current.session.progress.finish_cell(result)


def _warm_between_cells() -> None:
    """Do what the first op needs while the user reads; on the main thread, as a cell would."""
    if not _running:
        with quiet():  # an import that Ctrl-C tore could not be mended
            current.warm()


def _find_frame() -> FrameType | None:
    """The frame of the running cell, or of the main script: the outermost line a person wrote."""
    frame: FrameType | None = sys._getframe(1)
    found = None
    while frame is not None:
        if frame.f_code.co_name == "<module>":
            name = frame.f_globals.get("__name__")
            if name == "__main__":
                return frame
            found = found or frame
        frame = frame.f_back
    return found


def lost_names() -> list[str]:
    """Names in the notebook whose tensors, modules or optimizers were on a device that is gone."""
    main = sys.modules.get("__main__")
    names = list(vars(main).items()) if main is not None else []
    return [name for name, value in names if not name.startswith("_") and _is_lost(value)]


def _is_lost(value: Any, depth: int = 0) -> bool:
    """Whether a tensor, or one in a module, optimizer or container, is of an earlier session."""
    if isinstance(value, DeviceTensor):
        return value._b.graveyard is not current.session.buffers.graveyard
    if isinstance(value, nn.Module):
        return any(_is_lost(tensor) for tensor in (*value.parameters(), *value.buffers()))
    if depth > 3:
        return False
    if isinstance(value, torch.optim.Optimizer):
        return _is_lost(value.param_groups, depth) or _is_lost(dict(value.state), depth)
    if isinstance(value, dict):
        value = list(value.values())
    return isinstance(value, list | tuple) and any(_is_lost(v, depth + 1) for v in value[:1000])


def _explain(text: str) -> str:
    """The sentence for the user, with the names of what is lost."""
    names = lost_names()
    if not names:
        return f"{text} The kernel lives on; run the cell again."
    listed = ", ".join(names[:12]) + (", ..." if len(names) > 12 else "")
    return (
        f"{text} What was on the device is lost: {listed}. The kernel lives on; run the cells that "
        "make these again."
    )
