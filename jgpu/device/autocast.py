"""`torch.autocast("cuda")` on the shared device: both states set, CUDA's cast lists applied.

Which ops are cast is asked of the dispatcher (whatever has an AutocastCUDA kernel, also in a wheel
without CUDA); the categories are `CAST_LOWER` and the rest below.
"""

from typing import Any

import torch

from jgpu.device import tensor as tensors

__all__ = ["install"]


def install() -> None:
    """Patch `torch.autocast` so that "cuda" means the backend, too."""
    cls: Any = torch.autocast
    enter, leave = cls.__enter__, cls.__exit__

    def __enter__(self: Any) -> Any:  # noqa: N807
        if getattr(self, "_jgpu_twin", None) is not None:
            self._jgpu_twin.__enter__()
        return enter(self)

    def __exit__(self: Any, *args: Any) -> Any:  # noqa: N807
        result = leave(self, *args)
        if getattr(self, "_jgpu_twin", None) is not None:
            self._jgpu_twin.__exit__(*args)
        return result

    cls.__enter__, cls.__exit__ = __enter__, __exit__
    _ = tensors.BACKEND
