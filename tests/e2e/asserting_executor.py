"""An executor of kind `cuda-on-host` whose xlogy asserts on 13, with no guard before it.

Run as `jgpu.broker.executor` is, with a file's name before its arguments: while there is such a
file the streams hold still, so that what is launched meanwhile is in flight together.
"""

import sys
from pathlib import Path

import torch

from jgpu.broker.executor import process
from jgpu.broker.executor.devices.onhost.kernels import KERNELS
from jgpu.broker.executor.devices.onhost.kernels.asserts import device_assert
from jgpu.broker.executor.devices.onhost.streams import HostStreams

XLOGY = torch.ops.aten.xlogy.Tensor


def asserting(a, b):
    device_assert(a != 13, "no thirteens")
    return XLOGY(a, b)


def held(file, step):
    return lambda self: not file.exists() and step(self)


if __name__ == "__main__":
    KERNELS[XLOGY] = asserting
    HostStreams._step = held(Path(sys.argv[1]), HostStreams._step)
    sys.exit(process.main(sys.argv[2:]))
