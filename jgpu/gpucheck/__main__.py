"""`python -m jgpu.gpucheck`: all cases, as JSON lines."""

import sys

from jgpu.gpucheck.command import main

__all__: list[str] = []

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
