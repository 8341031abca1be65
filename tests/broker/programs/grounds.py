"""Where programs are run of which every byte is looked at: the CPU, or CUDA computed on the host.

A ground runs definitions and has their storages' bytes. On the host's CUDA new memory and what is
given back hold the pattern; on the CPU it is the C library that fills both (`stale.environment`).
"""

from contextlib import nullcontext

import torch
from recorder import storage_bytes

from jgpu.broker.executor.devices.onhost.calls import HostCalls
from jgpu.broker.executor.devices.onhost.eager import Eagerly
from jgpu.broker.executor.devices.onhost.kernels import unset
from jgpu.broker.executor.programs import RunContext
from jgpu.broker.executor.programs.running.notes import ValueNotes

__all__ = ["GROUNDS"]


class OnCpu:
    """The kernels of the CPU."""

    kind = "cpu"
    recording = nullcontext

    def __init__(self, pattern):
        """The C library has the pattern from the environment."""

    def running(self):
        """Around all that is done to tensors."""
        return nullcontext()

    def bring(self, host):
        """A tensor of these bytes on the device."""
        return host.clone()

    def bytes_of(self, tensor):
        """All bytes of its storage."""
        return storage_bytes(tensor)

    def context(self, rng, work):
        """What a run is given; `rng` is the state that was recorded."""
        generator = torch.Generator()
        if rng is not None:
            generator.set_state(rng)
        return RunContext(torch.device("cpu"), {0: generator}, work=work)


class OnHost:
    """The `cuda` device's kernels on the host, in memory that a neighbour has filled."""

    kind = "cuda-on-host"
    recording = Eagerly

    def __init__(self, pattern):
        unset.STALE = pattern
        self.calls = HostCalls()
        self._notes = ValueNotes(self.calls.torch_device)
        self.calls.set_stream(self.calls.stream())

    def running(self):
        return self.calls.launching()

    def bring(self, host):
        made = torch.empty(host.shape, dtype=host.dtype, device=self.calls.torch_device)
        self.calls.copy(made, host)
        return made

    def bytes_of(self, tensor):
        if not tensor.is_meta:  # where attention drew from is told on the host
            return storage_bytes(tensor)
        whole = torch.empty(0, dtype=torch.uint8, device=tensor.device)
        whole.set_(tensor.untyped_storage())
        host = torch.empty(whole.shape, dtype=torch.uint8)
        self.calls.copy(host, whole)
        return host

    def context(self, rng, work):
        generator = self.calls.generator().manual_seed(3)
        self._notes.work = work
        self._notes.forget()
        place = self.calls.torch_device
        return RunContext(place, {0: generator}, work=work, notes=self._notes)


GROUNDS = {ground.kind: ground for ground in (OnCpu, OnHost)}
