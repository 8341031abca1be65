"""The parity suite's broker: one lane, one thread, as the native runs have."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent))
sys.path.append(str(Path(__file__).parents[1] / "device"))

import pytest
from seat import cpu_broker


@pytest.fixture(scope="session")
def broker(tmp_path_factory):
    """A broker that serves from the CPU with one thread."""
    with cpu_broker(tmp_path_factory.mktemp("parity")) as running:
        yield running
