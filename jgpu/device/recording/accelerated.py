"""Hands over to the accelerator what its ops look up: plans, views, the session, numbers.

Invariant: the accelerator fills the same log from the same plans as `entry` does. What it meets
first (an op, a geometry, a view) is made in Python, and found by it from then on.
"""

import sys
from functools import partial
from typing import Any, Final

import torch

from jgpu.accelerator import loading
from jgpu.device import current
from jgpu.device.recording import copies
from jgpu.device.recording.dispatch import plans
from jgpu.device.recording.ops import COMPOSITE, STREAM, VIEW, info_of
from jgpu.device.recording.viewing import stretches, views
from jgpu.device.tensor import Backend, BufferHandle, DeviceTensor, SettledBuffer
from jgpu.device.tracebacks import hide, seam, unseen

__all__ = ["FACTORIES", "install", "make_here"]


#: what torch takes apart in Python; there is no kernel of its own for that
_TAKEN_APART: Final = frozenset({"aten::native_batch_norm"})
#: ops of other kinds that are recorded as any other where all of their tensors are on the device;
#: what waits has no plan that says what it returns
_BETWEEN: Final = frozenset({"aten::_to_copy", "aten::copy_", "aten::index.Tensor"})


#: factories that all others are made of, and the overload of each
FACTORIES: Final = (("empty", "memory_format"), ("empty_strided", ""))


def install() -> None:
    """Have torch's ops come to the accelerator first, where there is one."""
    library = loading.load()
    if library is None:
        return
    library.connect(
        DeviceTensor, current, plans, views.known, stretches.known, BufferHandle, SettledBuffer,
        partial, unseen(_note_large), unseen(_look), _cut_piece, unseen(_described), _number,
    )  # fmt: skip


def make_here() -> None:
    """Have factories come to it, too; once they have a kernel in Python, which has the rest."""
    library = loading.load()
    if library is not None:
        for name, overload in FACTORIES:
            library.make_here(name, overload)


def _note_large(buffer: BufferHandle) -> None:
    Backend.note_large(buffer)


def _look(log: Any) -> Any:
    return log.look()


@seam
def _cut_piece(session: Any) -> None:
    try:
        session.cut_piece()
    except BaseException as error:
        hide(error, sys._getframe())
        raise


@seam
def _number(source: DeviceTensor) -> Any:
    try:
        return copies.item(source)
    except BaseException as error:
        hide(error, sys._getframe())
        raise


def _described(name: str, overload: str) -> tuple[Any, ...] | None:
    """What there is to know of an op: its info, what it lifts, whether it is in place, or a view.

    None where Python is to deal with each of its calls; nothing of all that where the accelerator
    takes it apart by itself.
    """
    packet = getattr(torch.ops.aten, name.removeprefix("aten::"), None)
    func = getattr(packet, overload or "default", None)
    if func is None:
        return None
    info = info_of(func)
    if info.name in _TAKEN_APART and info.kind == COMPOSITE:
        return ()
    if info.name in _BETWEEN:
        return info, (0,) * len(info.lift), info.in_place, False
    if info.kind not in (STREAM, VIEW):
        return None
    return info, info.lift, info.in_place, info.kind == VIEW
