"""Tests of this folder run inside a process with a seat: see `tests/device/test_on_device.py`."""

import os
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent.parent))

collect_ignore_glob = [] if os.environ.get("JGPU_TICKET") else ["test_*.py"]
