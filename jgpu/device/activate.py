"""Turns `cuda` into the shared device for this process. Idempotent; connects to nobody yet.

Called by the `torch.backends` entry point in processes that have a seat. The hook that makes a
Python backend is private API of torch, so the version is checked against a tested table and the
registration checks itself; a torch that does not fit is refused with a sentence.
"""

import atexit
import gc
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from jgpu import errors
from jgpu.device import current, tensor, versions
from jgpu.wire import address

__all__ = ["activate"]

_done = False


def activate() -> None:
    """Register the backend, patch torch, and make a session that connects at first use."""
    global _done
    if _done:
        return
    _done = True
    misfit = _misfit()
    if misfit is not None:
        versions.refuse(misfit)
        return
    with _no_collection():
        _register_backend()
        _install(_problem())


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
    return versions.check_version() or versions.check_parts()


def _problem() -> errors.JgpuError | None:
    """Why this process has no seat; told at its first use of the device, never before."""
    if os.environ.get(address.TICKET) == address.NO_TICKET:
        text = os.environ.get(address.PROBLEM) or "This process could not get a seat."
        return errors.BrokerUnreachable(text)
    return None


def _register_backend() -> None:
    from torch.utils import backend_registration

    from jgpu.device.guard import Guard, install_engine

    module = _BackendModule()
    backend_registration._setup_privateuseone_for_python_backend(
        rename=tensor.BACKEND, backend_module=module, device_guard=Guard()
    )
    tensor._Backend.device = torch.device(tensor.BACKEND, 0)
    install_engine()


class _BackendModule:
    """What torch asks a registered backend's module (`torch.jgpu`)."""

    def is_initialized(self) -> bool:
        return True

    def is_available(self) -> bool:
        return True

    def current_device(self) -> int:
        return 0

    def device_count(self) -> int:
        return 1

    def _is_in_bad_fork(self) -> bool:
        return current.session._forked

    def manual_seed_all(self, seed: int) -> None:
        """Nothing: whoever seeds this backend (`torch.manual_seed`) has seeded "cuda", too."""

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.float16, torch.bfloat16, torch.float32]

    def get_rng_state(self, device: Any = None) -> torch.Tensor:
        from jgpu.device import rng

        return rng.get_state()

    def set_rng_state(self, state: torch.Tensor, device: Any = None) -> None:
        from jgpu.device import rng

        rng.set_state(state)


def _install(problem: errors.JgpuError | None) -> None:
    from jgpu.device import (
        autocast,
        cells,
        compiling,
        composites,
        controlflow,
        cudaface,
        face,
        foreach,
        higherorder,
        interrupts,
        largest,
        modules,
        patches,
        registration,
        rng,
        saving,
        sending,
    )
    from jgpu.device.session import Session

    current.set_session(Session(_connector(problem)))
    current.session.generators = rng.Generators()
    registration.install()
    interrupts.install()
    patches.install()
    face.install()
    modules.install()
    saving.install()
    rng.install()
    cudaface.install()
    sending.install()
    composites.install()
    foreach.install()
    higherorder.install()
    controlflow.install()
    autocast.install()
    compiling.install()
    cells.install()
    largest.install()
    atexit.register(current.session.close)
    os.register_at_fork(after_in_child=current.session.forked)


def _connector(problem: errors.JgpuError | None) -> Any:
    def connect() -> Any:
        from jgpu.device.link import Link

        if problem is not None:
            raise problem
        try:
            return Link.open(_hello())
        except errors.BrokerUnreachable as error:
            if not (os.environ.get(address.KERNEL_ID) and address.find().may_be_private):
                raise
            text = f"{error} Restart the kernel: that starts your own broker again."
            raise errors.BrokerUnreachable(text) from None

    return connect


def _hello() -> dict[str, Any]:
    from jgpu.wire.runtime import runtime_of

    environ = os.environ
    return {
        "runtime": runtime_of(torch),
        "pid": os.getpid(),
        "ticket": environ.get(address.TICKET, ""),
        "user": environ.get(address.USER, ""),
        "label": environ.get(address.LABEL, "") or os.path.basename(sys.argv[0] or "python"),
        "kernel_id": environ.get(address.KERNEL_ID, ""),
        "priority": environ.get(address.PRIORITY, ""),
    }
