"""Whether optimizers, clipping and averaging take their foreach forms: as on the executor's device.

PyTorch decides it by a list of device types and of tensor types. Alone on a CPU it steps parameters
one by one but clips them together; on CUDA it does both together. The bits may differ, so the list
here says what it would say to the executor.

Where they do not differ (`_SAME_BITS`, held by the parity tests), a step on a CPU takes the foreach
form, too: one op for all parameters is recorded, sent and started for less than one op each.
"""

import functools
import importlib
import sys
from collections.abc import Callable
from typing import Any, Final

import torch

from jgpu.device import current
from jgpu.device.tensor import DeviceTensor
from jgpu.device.tracebacks import hide, seam

__all__ = ["install"]

# by name: `torch.optim` deletes its submodules' names
_utils: Any = importlib.import_module("torch.utils._foreach_utils")
_optimizer: Any = importlib.import_module("torch.optim.optimizer")
_averaging: Any = importlib.import_module("torch.optim.swa_utils")
_clipping: Any = importlib.import_module("torch.nn.utils.clip_grad")

#: Optimizers whose foreach form does the same arithmetic in the same order, in these types.
_SAME_BITS: Final = ("adadelta", "adagrad", "adam", "adamax", "rmsprop", "rprop", "sgd")
_EXACT_TYPES: Final = (torch.float32, torch.float64)


def install() -> None:
    """Make the device's tensors known, and the list of devices depend on the executor's."""
    for module in (_utils, _optimizer):
        module._foreach_supported_types.append(DeviceTensor)
    devices = _following(_utils._get_foreach_kernels_supported_devices)
    for module in (_utils, _optimizer, _averaging):
        module._get_foreach_kernels_supported_devices = devices
    # For clipping, torch adds "cpu" to the list: there is no device without.
    for name in _SAME_BITS:
        one: Any = importlib.import_module(f"torch.optim.{name}")
        one._default_to_fused_or_foreach = _joined(one._default_to_fused_or_foreach)
    for module in (_utils, _clipping):
        module._device_has_foreach_support = lambda device: True


def _following(listed: Callable[[], list[str]]) -> Callable[[], list[str]]:
    @functools.wraps(listed)
    def devices() -> list[str]:
        try:
            session = current.session
            if not session.used or session.device_facts().has_cuda_kernels:
                return listed()
            return [name for name in listed() if name != "cuda"]
        except BaseException as error:
            hide(error, sys._getframe())
            raise

    return seam(devices)


def _joined(default: Callable[..., tuple[bool, bool]]) -> Callable[..., tuple[bool, bool]]:
    @functools.wraps(default)
    def fused_or_foreach(
        params: list[torch.Tensor], differentiable: bool, use_fused: bool = False
    ) -> tuple[bool, bool]:
        try:
            fused, foreach = default(params, differentiable, use_fused)
            if not (fused or foreach or differentiable):
                foreach = _are_exact(params)
        except BaseException as error:
            hide(error, sys._getframe())
            raise
        return fused, foreach

    return seam(fused_or_foreach)


def _are_exact(params: list[torch.Tensor]) -> bool:
    for each in params:
        if type(each) is not DeviceTensor or each.dtype not in _EXACT_TYPES:
            return False
    return True
