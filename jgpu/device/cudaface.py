"""`torch.cuda` for the shared device."""

__all__ = ["install"]


def install() -> None:
    """Replace the functions of `torch.cuda`."""
    import torch

    torch.cuda.is_available = lambda: True
    torch.cuda.device_count = lambda: 1
