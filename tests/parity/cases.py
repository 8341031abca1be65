"""What all parity cases share: the list of cases, seeds, random numbers, and a plain training loop.

A case is a function of the device's name that returns tensors and numbers; `runner` runs it once
natively ("cpu") and once on the shared device ("cuda"), and both must give the same bytes. A case
knows nothing of jgpu.

Random numbers made on the device come from a generator of the device's own, as on CUDA. Natively
host and device are one, so a case says with `on_device()` where its random ops are the device's;
there they draw from a second generator, which `seed` seeds like the first.

What a CUDA executor gives is compared with the same case run at once through the same kernels
(`as_on_cuda`): its random numbers are Philox's, and its composites go CUDA's ways.
"""

import contextlib

import torch
from torch.utils._python_dispatch import TorchDispatchMode

__all__ = [
    "CASES",
    "as_on_cuda",
    "case",
    "generator_of",
    "named",
    "on_device",
    "seed",
    "state_of",
    "train",
]

#: name -> function(device) -> list of tensors and numbers; its module is the module of the case
CASES = {}

_second = torch.Generator()
#: what judges a CUDA executor, while a case runs natively for one
_judge = None


def case(function):
    """Register a case under its own name."""
    return named(function.__name__)(function)


def named(name):
    """Register a case under a given name."""

    def register(function):
        assert name not in CASES, name
        CASES[name] = function
        return function

    return register


def seed(number):
    """Seed the host's and the device's generators."""
    torch.manual_seed(number)
    (_second if _judge is None else _judge.generator).manual_seed(number)


class _DeviceRandom(TorchDispatchMode):
    """Random ops draw from the second generator: its state is swapped in around each of them."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if torch.Tag.nondeterministic_seeded not in func.tags or kwargs.get("generator"):
            return func(*args, **kwargs)
        host = torch.get_rng_state()
        torch.set_rng_state(_second.get_state())
        try:
            return func(*args, **kwargs)
        finally:
            _second.set_state(torch.get_rng_state())
            torch.set_rng_state(host)


def on_device(device):
    """A context in which every random op is the device's."""
    if device != "cpu":
        return contextlib.nullcontext()
    return _DeviceRandom() if _judge is None else _judge.drawing()


def generator_of(device):
    """A generator of one's own on the device."""
    return torch.Generator(device=device) if _judge is None else type(_judge.generator)()


@contextlib.contextmanager
def as_on_cuda():
    """A case inside gives natively what it gives on a CUDA without a GPU; seed it inside."""
    global _judge
    from jgpu.broker.executor.devices.onhost.branches import AsOnCuda

    with AsOnCuda() as _judge:
        try:
            yield
        finally:
            _judge = None


def state_of(*objects):
    """All tensors and numbers of modules and optimizers, in order."""
    found = []
    for thing in objects:
        _flatten(thing.state_dict(), found)
    return found


def _flatten(value, found):
    if isinstance(value, dict):
        for item in value.values():
            _flatten(item, found)
    elif isinstance(value, list | tuple):
        for item in value:
            _flatten(item, found)
    elif isinstance(value, torch.Tensor):
        found.append(value.detach().clone())
    elif isinstance(value, int | float):
        found.append(value)


def train(net, optimizer, loss_of, batches, *, after_backward=None, scheduler=None):
    """The loop everyone writes; returns every loss, then the final state of net and optimizer."""
    losses = []
    for batch in batches:
        optimizer.zero_grad()
        loss = loss_of(*batch)
        loss.backward()
        if after_backward is not None:
            after_backward()
        optimizer.step()
        if scheduler is not None:
            scheduler.step()
        losses.append(loss.item())
    return losses + state_of(net, optimizer)
