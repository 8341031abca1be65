"""Runs the tests of `on_device` inside a process with a seat at a real broker.

They are ordinary tests; only their process differs: there `cuda` is the shared device. A few files
share a process, for most of the time of one is its start.
"""

import sys
from pathlib import Path

import processes
import pytest

FOLDER = Path(__file__).parent / "on_device"
_AT_ONCE = 4
_FILES = sorted(path.name for path in FOLDER.glob("test_*.py"))
_GROUPS = [_FILES[at : at + _AT_ONCE] for at in range(0, len(_FILES), _AT_ONCE)]


@pytest.mark.e2e
@pytest.mark.timeout(600)
@pytest.mark.parametrize("files", _GROUPS, ids=" ".join)
def test_on_the_shared_device(broker, files):
    paths = [str(FOLDER / file) for file in files]
    done = processes.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *paths],
        env=broker.environment(),
        capture_output=True,
        text=True,
        timeout=580,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout[-12000:]}\n{done.stderr[-4000:]}"
