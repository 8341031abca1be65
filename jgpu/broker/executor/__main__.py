"""`python -m jgpu.broker.executor SETTINGS_JSON FD`; see `process`."""

import sys

from jgpu.broker.executor.process import main

sys.exit(main(sys.argv[1:]))
