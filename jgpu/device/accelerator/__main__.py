"""`python -m jgpu.device.accelerator`: build it for this interpreter's torch."""

import sys

from jgpu.device.accelerator.building import build
from jgpu.errors import JgpuError

if __name__ == "__main__":
    try:
        print(f"Built {build()}.")  # noqa: T201 - what was asked for
    except JgpuError as error:
        sys.exit(str(error))
