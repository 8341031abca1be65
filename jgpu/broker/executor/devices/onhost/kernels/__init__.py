"""Host versions of the kernels that CUDA has and the CPU lacks, or that draw otherwise there.

Imported for the tables `KERNELS` and `DRAWS`; what they promise stands in `tables`.
"""

from jgpu.broker.executor.devices.onhost.kernels.asserts import DeviceAssert
from jgpu.broker.executor.devices.onhost.kernels.attention import (
    choice,
    cudnn,
    efficient,
    flash,
)
from jgpu.broker.executor.devices.onhost.kernels.drawing import (
    dropout,
    factories,
    inplace,
    rejection,
    sampling,
)
from jgpu.broker.executor.devices.onhost.kernels.layers import (
    bags,
    cells,
    images,
    mixed,
    norms,
    types,
)
from jgpu.broker.executor.devices.onhost.kernels.philox import Philox
from jgpu.broker.executor.devices.onhost.kernels.recurrent import ops as recurrent
from jgpu.broker.executor.devices.onhost.kernels.tables import DRAWS, KERNELS

__all__ = [
    "DRAWS",
    "KERNELS",
    "DeviceAssert",
    "Philox",
    "bags",
    "cells",
    "choice",
    "cudnn",
    "dropout",
    "efficient",
    "factories",
    "flash",
    "images",
    "inplace",
    "mixed",
    "norms",
    "recurrent",
    "rejection",
    "sampling",
    "types",
]
