"""Tensors that are sent to other processes: refused in one sentence, where they are sent.

On CUDA a process that is sent a tensor sees the sender's memory, and both see each other's changes.
A session's memory is its own here, so whatever holds it (tensors, parameters and thus models and
optimizers, storages, sparse tensors, events) cannot be pickled by `multiprocessing`. A queue
pickles in a thread of its own, which drops what it cannot pickle: there the refusal itself is sent,
and raised by the receiver, who would otherwise wait for ever.

Does not cover files and `pickle` itself, which keep copies (`saving`), nor processes that are
forked, which `session` tells of.
"""

import threading
import weakref
from multiprocessing import queues, reduction
from typing import Any, NoReturn

import torch

from jgpu.device.errors import refused
from jgpu.device.sparse.compressed import CompressedTensor
from jgpu.device.sparse.coo import SparseTensor
from jgpu.device.tensor import DeviceTensor
from jgpu.device.tensors.storage import Storage
from jgpu.device.tracebacks import unseen
from jgpu.errors import NotSupported

__all__ = ["install"]

#: threads that pickle for a queue, and print what goes wrong; that of a process about to end does
#: not even print
_feeders: weakref.WeakSet[threading.Thread] = weakref.WeakSet()

_WHY = (
    "each process has memory of its own there. Send tensor.cpu(), or model.cpu() for a model, and "
    "move it to the device in the other process"
)


def install() -> None:
    """Tell `multiprocessing` and torch's part of it."""
    from torch.multiprocessing import reductions

    for kind in (DeviceTensor, SparseTensor, CompressedTensor):
        reduction.register(kind, unseen(_reduce_tensor))
    reduction.register(Storage, unseen(_reduce_storage))
    reduction.register(torch.cuda.Event, unseen(_reduce_event))
    reduce_tensor: Any = reductions.reduce_tensor
    new_shared: Any = torch.UntypedStorage._new_shared

    def reduce(tensor: Any) -> Any:
        return _not_sent("tensors") if tensor.is_cuda else reduce_tensor(tensor)

    def shared(cls: Any, size: int, *, device: Any = "cpu") -> Any:
        """What a worker of a data loader collates its batch into."""
        if torch.device(device).type == "cuda":
            raise _refused("tensors")
        return new_shared(size, device=device)

    reductions.reduce_tensor = unseen(reduce)
    torch.UntypedStorage._new_shared = classmethod(unseen(shared))  # type: ignore[assignment]
    queue: Any = queues.Queue
    start, tell = queue._start_thread, queue._on_queue_feeder_error

    def start_thread(self: Any) -> None:
        start(self)
        if type(self)._on_queue_feeder_error is tell:  # executors' queues tell the caller
            _feeders.add(self._thread)

    queue._start_thread = unseen(start_thread)


def _refused(what: str) -> NotSupported:
    return refused(f"sending {what} to another process", _WHY)


def _reduce_tensor(tensor: Any) -> Any:
    return _not_sent("tensors")


def _reduce_event(event: Any) -> Any:
    return event.ipc_handle()  # which refuses


def _reduce_storage(storage: Any) -> Any:
    return _not_sent("storages")


def _not_sent(what: str) -> Any:
    """Raise; or, where nobody would hear it, what raises where it is received."""
    error = _refused(what)
    if threading.current_thread() not in _feeders:
        raise error
    return _raise, (str(error),)


def _raise(text: str) -> NoReturn:
    raise NotSupported(text)
