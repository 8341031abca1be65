"""`python -m jgpu` is the command `jgpu` of that interpreter."""

import sys

from jgpu.cli import main

if __name__ == "__main__":
    sys.exit(main())
