"""Turns `cuda` into the shared device for this process. Idempotent; connects to nobody yet.

Called by the `torch.backends` entry point in processes that have a seat. The hook that makes a
Python backend is private API of torch, so the version is checked against a tested table and the
registration checks itself; a torch that does not fit is refused with a sentence.
"""

import atexit
import gc
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from jgpu import errors
from jgpu.device import current, versions
from jgpu.device.client.transport import Transport
from jgpu.wire import address

__all__ = ["activate"]

_done = False


def activate(connect: Callable[[], Transport] | None = None) -> None:
    """Register the backend, patch torch, and make a session that connects at first use.

    `connect` opens the connection where it is not to the broker that the environment names.
    """
    global _done
    if _done:
        return
    _done = True
    misfit = _misfit()
    if misfit is not None:
        versions.refuse(misfit)
        return
    from jgpu.device import interrupts

    interrupts.install()  # from here on none tears what follows (`struck`)
    with _no_collection():
        _register_backend()
        _install(connect or _connector(_problem()))


@contextmanager
def _no_collection() -> Iterator[None]:
    """Look through torch's hundred thousands of objects later than in the midst of this."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


def _misfit() -> errors.JgpuError | None:
    """Why nothing can be installed here at all."""
    if not sys.platform.startswith("linux"):
        return errors.HostError("jgpu runs on Linux only.")
    return versions.check_version() or versions.check_parts() or versions.name_backend()


def _problem() -> errors.JgpuError | None:
    """Why this process has no seat; told at its first use of the device, never before."""
    if os.environ.get(address.TICKET) == address.NO_TICKET:
        text = os.environ.get(address.PROBLEM) or "This process could not get a seat."
        return errors.BrokerUnreachable(text)
    return None


def _register_backend() -> None:
    """As `torch.utils.backend_registration` does it, but that the module is `torch.cuda`."""
    from torch.utils import backend_registration

    from jgpu.accelerator import loading
    from jgpu.device import tensor
    from jgpu.device.hooks.guard import BackwardGuard, install_engine

    acc: Any = torch._C._acc
    acc.register_python_privateuseone_hook(backend_registration._DummyPrivateUse1Hook())
    library = loading.load()
    if library is not None:
        library.install_guard()
    else:
        acc.register_python_privateuseone_device_guard(BackwardGuard())
    tensor.Backend.device = tensor.CUDA
    install_engine()


def _install(connect: Callable[[], Transport]) -> None:
    from jgpu.device import cuda
    from jgpu.device.client.notebook import largest
    from jgpu.device.client.session import ClientSession
    from jgpu.device.composed import (
        autocast,
        compiling,
        composites,
        controlflow,
        foreach,
        higherorder,
    )
    from jgpu.device.hooks import (
        cells,
        collectives,
        distributions,
        gradients,
        patches,
        switches,
    )
    from jgpu.device.library import registrations
    from jgpu.device.recording import registration
    from jgpu.device.tensors import (
        face,
        modules,
        nested,
        rng,
        saving,
        scripted,
        sending,
        splits,
        subclasses,
    )

    current.set_session(ClientSession(connect, rng.Generators()))
    registration.install()
    patches.install()
    switches.install()
    face.install()
    modules.install()
    nested.install()
    saving.install()
    scripted.install()
    rng.install()
    cuda.install()
    sending.install()
    subclasses.install()
    splits.install()
    composites.install()
    foreach.install()
    gradients.install()
    higherorder.install()
    controlflow.install()
    autocast.install()
    compiling.install()
    cells.install()
    collectives.install()
    distributions.install()
    largest.install()
    registrations.install()  # after those above: their kernels are not a notebook's
    atexit.register(current.session.close)
    os.register_at_fork(after_in_child=current.session.after_fork)


def _connector(problem: errors.JgpuError | None) -> Any:
    def connect() -> Any:
        from jgpu.device import current
        from jgpu.device.client.link import Link
        from jgpu.device.client.notebook.runahead import run_ahead_s

        if problem is not None:
            raise problem
        current.session.outbox.ahead.seconds = run_ahead_s(os.environ)
        try:
            return Link.open(_hello())
        except errors.BrokerUnreachable as error:
            if not (os.environ.get(address.KERNEL_ID) and address.find().may_be_private):
                raise
            text = f"{error} Restart the kernel: that starts your own broker again."
            raise errors.BrokerUnreachable(text) from None

    return connect


def _hello() -> dict[str, Any]:
    from jgpu.wire.fields import sendable
    from jgpu.wire.runtime import runtime_of

    environ = os.environ
    said = {
        "ticket": environ.get(address.TICKET, ""),
        "user": environ.get(address.USER, ""),
        "label": environ.get(address.LABEL, "") or os.path.basename(sys.argv[0] or "python"),
        "kernel_id": environ.get(address.KERNEL_ID, ""),
        "priority": environ.get(address.PRIORITY, ""),
    }
    return {
        "runtime": runtime_of(torch),
        "pid": os.getpid(),
        **{field: sendable(text) for field, text in said.items()},
    }
