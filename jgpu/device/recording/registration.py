"""Our kernels in torch's dispatcher: the tensor's dispatch, the fallback, the ops with a name.

Factories have no device tensor among their arguments and reach the PrivateUse1 fallback. A few ops
arrive there with one all the same, because torch calls them with the Python key excluded (inside
`torch.tensor`): those are registered by name, or torch looks for a registration that is not there.
So are the factories that all others are made of: where a dispatch mode is on, torch looks for such
a registration even of what comes to the fallback. So are the ops of which torch has a composite
form and the device a kernel of its own: only a registration keeps torch from taking the composite,
whose result has other bits.
"""

import sys
from functools import partial
from typing import Any

import torch

from jgpu.device.recording import accelerated
from jgpu.device.recording.dispatch import dispatch
from jgpu.device.recording.entry import torch_dispatch
from jgpu.device.recording.ops import WITH_OWN_KERNELS
from jgpu.device.tensor import DeviceTensor
from jgpu.device.tracebacks import hide

__all__ = ["install"]

_libraries: list[Any] = []

#: Reached with the Python key excluded (see the module).
_BY_NAME = ("_copy_from", "_local_scalar_dense", "_copy_from_and_resize", *WITH_OWN_KERNELS)


def install() -> None:
    """Register everything once."""
    DeviceTensor.__torch_dispatch__ = classmethod(torch_dispatch)  # type: ignore[assignment]
    _shorten_rule_lookup()
    accelerated.install()
    fallback = torch.library.Library("_", "IMPL")
    fallback.fallback(_fallback, "PrivateUse1")
    fallback.fallback(torch.library.fallthrough_kernel, "AutocastPrivateUse1")
    named = torch.library.Library("aten", "IMPL")
    for base, overload in (*((name, "") for name in _BY_NAME), *accelerated.FACTORIES):
        op = getattr(getattr(torch.ops.aten, base), overload or "default")
        named.impl(op, partial(_fallback, op), "PrivateUse1")
    _libraries.extend((fallback, named))
    accelerated.make_here()


def _shorten_rule_lookup() -> None:
    """Torch asks a registry for custom rules at each dispatch; for our tensor there are none."""
    from torch._library import simple_registry

    original = simple_registry.find_torch_dispatch_rule

    def find(op: Any, torch_dispatch_class: type) -> Any:
        ours = torch_dispatch_class is DeviceTensor
        return None if ours else original(op, torch_dispatch_class)

    simple_registry.find_torch_dispatch_rule = find


def _fallback(op: Any, *args: Any, **kwargs: Any) -> Any:
    try:
        return dispatch(op, args, kwargs)
    except BaseException as error:
        hide(error, sys._getframe())
        raise
