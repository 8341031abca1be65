"""Whether optimizers, clipping and averaging take their foreach forms: as on the executor's device.

PyTorch decides it by a list of device types and of tensor types. Alone on a CPU it steps parameters
one by one but clips them together; on CUDA it does both together. The bits differ, so the list here
says what it would say to the executor.
"""

import importlib
from collections.abc import Callable
from typing import Any

from jgpu.device import current
from jgpu.device.tensor import BACKEND, DeviceTensor

__all__ = ["install"]

# by name: `torch.optim` deletes its submodules' names
_utils: Any = importlib.import_module("torch.utils._foreach_utils")
_optimizer: Any = importlib.import_module("torch.optim.optimizer")
_averaging: Any = importlib.import_module("torch.optim.swa_utils")
_clipping: Any = importlib.import_module("torch.nn.utils.clip_grad")


def install() -> None:
    """Make the device's tensors known, and the list of devices depend on the executor's."""
    for module in (_utils, _optimizer):
        module._foreach_supported_types.append(DeviceTensor)
    devices = _following(_utils._get_foreach_kernels_supported_devices)
    for module in (_utils, _optimizer, _averaging):
        module._get_foreach_kernels_supported_devices = devices
    # For clipping, torch adds "cpu" to the list: there is no device without.
    for module in (_utils, _clipping):
        module._device_has_foreach_support = lambda device: True


def _following(listed: Callable[[], list[str]]) -> Callable[[], list[str]]:
    def devices() -> list[str]:
        session = current.session
        if not session.used or session.device_facts().kind == "cuda":
            return listed()
        return [name for name in listed() if name not in ("cuda", BACKEND)]

    return devices
