"""Runs the tests of `on_device` inside a process with a seat at a real broker.

They are ordinary tests; only their process differs: there `cuda` is the shared device. Each file is
one process, so that a failure of one does not hide the others'.
"""

import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent / "on_device"


@pytest.mark.e2e
@pytest.mark.parametrize("file", sorted(path.name for path in FOLDER.glob("test_*.py")))
def test_on_the_shared_device(broker, file):
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(FOLDER / file)],
        env=broker.environment(),
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout[-12000:]}\n{done.stderr[-4000:]}"
