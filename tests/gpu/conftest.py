"""Lets the tests here use the seats that those of the device have."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "device"))
