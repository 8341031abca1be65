"""`torch.backends.cuda` and `cudnn`: built and there, as far as a notebook asks.

`cudnn.is_acceptable` stays False: torch asks it before it packs an RNN's weights into one buffer by
itself, which is the executor's affair.
"""

from typing import Any

__all__ = ["install"]


def _yes() -> bool:
    return True


def _not_acceptable(tensor: Any) -> bool:
    return False


def install() -> None:
    """Replace what asks for real libraries."""
    import torch.backends.cuda
    import torch.backends.cudnn

    torch.backends.cuda.is_built = _yes
    torch.backends.cudnn.is_acceptable = _not_acceptable
    if torch._C._has_cuda:
        # A CUDA wheel would load the libraries to tell their versions.
        torch.backends.cudnn.is_available = _yes
