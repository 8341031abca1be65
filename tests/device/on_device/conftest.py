"""Tests of this folder run inside a process with a seat: see `tests/device/test_on_device.py`."""

import os

collect_ignore_glob = [] if os.environ.get("JGPU_TICKET") else ["test_*.py"]
