"""An executor with an op that does not end, which no guard knows: `aten::special_bessel_j0`.

Run as `python endless_executor.py FIFO SETTINGS FD PAGE`. The op waits until somebody opens the
named pipe for writing, outside the interpreter's lock, as a kernel would. Each time that it begins
a byte is added to the file `FIFO.begun`.
"""

import sys
from pathlib import Path

import torch

from jgpu.broker.executor import process

if __name__ == "__main__":
    fifo = Path(sys.argv[1])

    def endless(x):
        with fifo.with_suffix(".begun").open("ab") as begun:
            begun.write(b".")
        with fifo.open("rb"):
            return x.clone()

    library = torch.library.Library("aten", "IMPL")
    library.impl("special_bessel_j0", endless, "CPU")
    sys.exit(process.main(sys.argv[2:]))
