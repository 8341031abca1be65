"""What CUDA's kernels assert on the device: a launch that fails so takes its context with it."""

from torch import Tensor

__all__ = ["DeviceAssert", "device_assert"]


class DeviceAssert(RuntimeError):
    """A kernel asserted: on CUDA `device-side assert triggered`, told at the next look.

    The device is at fault for nobody: who runs kernels makes of it the sticky error that it is.
    """


def device_assert(holds: Tensor, sentence: str) -> None:
    """Raise `DeviceAssert` unless this holds for every element."""
    if not bool(holds.all()):
        raise DeviceAssert(f"CUDA error: device-side assert triggered ({sentence})")
