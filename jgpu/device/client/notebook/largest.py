"""What can never fit is refused on the line that asks for it, with the names of what is large.

When the storages that live, together with a new one, come to more than the user's limit, or than
the device has, the op that would make it raises `torch.OutOfMemoryError`, and nothing of it is
recorded. Storages that are small beside the limit are counted and not looked at, until little is
left. That is a lower bound: what ops need on the way is the executor's to count. What does not fit
because of others is no error at all; it waits.

Storages are counted by number, too: what the executor keeps of each takes memory of the host. Where
few more may be, every one is looked at.

Invariant: nothing is refused that would have fitted.
"""

import gc
import sys
import weakref
from collections.abc import Iterator
from typing import Any, Final

import torch
from torch import nn

from jgpu.device import current
from jgpu.device.errors import DeviceOutOfMemory
from jgpu.device.tensor import BufferHandle, DeviceTensor, watch_large
from jgpu.wire import limits
from jgpu.wire import messages as m
from jgpu.wire.sizes import torch_size

__all__ = ["explain", "install", "watch"]

#: a storage is large from this part of the limit on, and from these bytes on before that is known
_PART: Final = 1024
_BEFORE: Final = 1 << 20
#: bytes from which on it has to be known
_ASK: Final = 64 << 20
#: where less than this part of the limit is left every storage is looked at
_LEFT: Final = 8
#: and where so many storages more, or fewer, may be
_FEW: Final = 2 * limits.MAX_SLOTS
#: what a message lists, and how deep it looks into containers
_LISTED: Final = 5
_DEPTH: Final = 4

#: storages that were looked at and were not sent when they were last sorted out; their bytes
_unsent: list[weakref.ref[BufferHandle]] = []
_unsent_bytes = 0
_limit = 0
_most_storages = limits.MAX_BUFFERS
_looks_at_all = False


def install() -> None:
    """Look from the first storage on; what may be had is known when the broker has answered."""
    watch_large(_BEFORE, _note)
    current.session.watch_memory(watch, _sort_out, explain)


def watch(ready: m.Ready, storages: int = limits.MAX_BUFFERS) -> None:
    """Refuse what is more than the broker said that this user may have, or more storages."""
    global _limit, _most_storages
    _most_storages = storages
    capacity = ready.device.capacity
    _limit = min(ready.limit or capacity, capacity)
    _look(everything=_is_near())


def _look(*, everything: bool) -> None:
    """Look at each storage that will be made, or at large ones."""
    global _looks_at_all
    _looks_at_all = everything
    watch_large(-1 if everything else _limit // _PART, _note)


def _is_near() -> bool:
    held = current.session.buffers.held
    return held.nbytes > _limit - _limit // _LEFT or len(held) > _most_storages - _FEW


def _sort_out() -> None:
    """Something was sent: what the executor knows from here on is counted there."""
    global _unsent_bytes
    if _limit and _is_near() is not _looks_at_all:
        _look(everything=not _looks_at_all)
    if _unsent:
        waiting = [each for each in _unsent if (found := each()) is not None and not found.id]
        _unsent[:] = waiting
        _unsent_bytes = sum(found.nbytes for each in waiting if (found := each()) is not None)


def _note(buffer: BufferHandle) -> None:
    """A storage is about to be; raises where it and the living ones cannot all be."""
    global _unsent_bytes
    session = current.session
    _unsent_bytes += buffer.nbytes
    _unsent.append(weakref.ref(buffer))
    if not _limit and session.buffers.held.nbytes + _unsent_bytes > _ASK:
        session.device_facts()  # opens the connection, and so `watch` is called
    if len(session.buffers.held) + len(_unsent) > _most_storages:
        _refuse_one_too_many(buffer)
    most = _limit if _looks_at_all else _limit - _limit // _LEFT
    if not _limit or session.buffers.held.nbytes + _unsent_bytes <= most or _count() <= _limit:
        return
    session.cut()  # ops that were recorded keep what they read, until they are sent
    gc.collect()  # what a circle of references keeps is garbage
    living = _count()
    if living > _limit:
        _take_back(buffer)
        raise DeviceOutOfMemory(_refusal(buffer.nbytes, living - buffer.nbytes))


def _refuse_one_too_many(buffer: BufferHandle) -> None:
    """Raise if more storages live than may."""
    if _living() <= _most_storages:
        return
    current.session.cut()
    gc.collect()
    if _living() > _most_storages:
        _take_back(buffer)
        raise DeviceOutOfMemory(
            f"CUDA out of memory. Tried to allocate {torch_size(buffer.nbytes)}. This notebook "
            f"holds {_most_storages:,} tensors on the shared device, which is the most that one "
            "may have. Keep numbers as Python's (loss.item()), and many small tensors as one "
            "(torch.stack)."
        )


def _take_back(buffer: BufferHandle) -> None:
    """A storage is refused: it will not be."""
    global _unsent_bytes
    _unsent[:] = [each for each in _unsent if each() is not buffer]
    _unsent_bytes -= buffer.nbytes


def _living() -> int:
    """How many storages live."""
    buffers = current.session.buffers
    unsent = sum((found := each()) is not None and not found.id for each in _unsent)
    return len(buffers.held) - len(buffers.graveyard) + unsent


def _count() -> int:
    """Bytes of the storages that live."""
    return current.session.living_bytes(
        [found for each in _unsent if (found := each()) is not None]
    )


def _refusal(nbytes: int, living: int) -> str:
    return (
        f"CUDA out of memory. Tried to allocate {torch_size(nbytes)}. The shared device has a "
        f"total capacity of {torch_size(_limit)} for you, of which this notebook's tensors use "
        f"{torch_size(living)}; no other user's memory is counted. {explain()}"
    )


def explain() -> str:
    """The notebook's largest tensors, by the names of the variables that hold them."""
    sizes: dict[str, int] = {}
    seen: set[int] = set()
    for name, value in _names():
        nbytes = 0
        for tensor in _tensors(value, 0):
            buffer = tensor._b
            if id(buffer) not in seen and buffer.graveyard is current.session.buffers.graveyard:
                seen.add(id(buffer))
                nbytes += buffer.nbytes
        if nbytes:
            sizes[name] = nbytes
    unnamed = max(0, _count() - sum(sizes.values()))
    listed = [
        f"{name} {torch_size(nbytes)}"
        for name, nbytes in sorted(sizes.items(), key=lambda item: -item[1])[:_LISTED]
    ]
    if unnamed > _limit // _PART:
        listed.append(
            f"{torch_size(unnamed)} without a name "
            "(activations kept for backward, a traceback's frames)"
        )
    if not listed:
        return "No variable of the notebook holds a tensor on the device."
    return f"Largest: {', '.join(listed)}; `del` what is not needed, or use smaller batches."


def _names() -> Iterator[tuple[str, Any]]:
    """The notebook's variables, those of the user first; then what IPython keeps of outputs."""
    main = sys.modules.get("__main__")
    variables = list(vars(main).items()) if main is not None else []
    for name, value in variables:
        if not name.startswith("_") and name not in ("In", "Out"):
            yield name, value
    outputs = dict(variables).get("Out")
    if isinstance(outputs, dict):
        for number, value in list(outputs.items()):
            yield f"Out[{number}]", value


def _tensors(value: Any, depth: int) -> Iterator[DeviceTensor]:
    """The device's tensors in a tensor, module, optimizer or container, gradients among them."""
    if isinstance(value, DeviceTensor):
        yield value
        if value.is_leaf and isinstance(value.grad, DeviceTensor):
            yield value.grad
    elif isinstance(value, nn.Module):
        for tensor in (*value.parameters(), *value.buffers()):
            yield from _tensors(tensor, depth)
    elif depth < _DEPTH:
        if isinstance(value, torch.optim.Optimizer):
            value = list(value.state.values())
        elif isinstance(value, dict):
            value = list(value.values())
        if isinstance(value, list | tuple):
            for each in value[:1000]:
                yield from _tensors(each, depth + 1)
