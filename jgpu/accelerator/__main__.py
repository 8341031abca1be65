"""`python -m jgpu.accelerator`: build it for this interpreter, and say where it is."""

import sys

from jgpu.accelerator.building import build
from jgpu.errors import JgpuError

if __name__ == "__main__":
    try:
        print(build())  # noqa: T201 - what was asked for
    except JgpuError as error:
        sys.exit(str(error))
