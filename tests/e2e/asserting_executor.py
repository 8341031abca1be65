"""An executor of kind `cuda-on-host` whose xlogy asserts on 13, with no guard before it.

Run as `jgpu.broker.executor` is, with a file's name before its arguments: while there is such a
file the streams hold still, so that what is launched meanwhile is in flight together. A stream with
an xlogy to do goes on before the others, so that they are in flight still when it asserts.
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


def is_asserting(task):
    return getattr(getattr(task, "__self__", None), "op", None) is XLOGY


def held(file, step):
    def stepping(streams):
        first = {each.number for each in streams._all if any(map(is_asserting, each.tasks))}
        if first:
            streams._spell = 1
            streams._slow = frozenset({each.number for each in streams._all} - first)
        return not file.exists() and step(streams)

    return stepping


if __name__ == "__main__":
    KERNELS[XLOGY] = asserting
    HostStreams._step = held(Path(sys.argv[1]), HostStreams._step)
    sys.exit(process.main(sys.argv[2:]))
