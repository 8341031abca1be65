"""One real broker for all tests of the device; each test runs its code in a process with a seat."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent))

import pytest
from seat import cpu_broker


@pytest.fixture(scope="session")
def broker(tmp_path_factory):
    """A broker that serves from the CPU; `broker.seat(source)` runs Python with a seat at it."""
    with cpu_broker(tmp_path_factory.mktemp("seat")) as running:
        yield running
