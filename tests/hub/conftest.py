"""The hub's tests use the same broker as those of the kernels."""

import sys
import tempfile
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "kernelprovider"))

import lab
import pytest
from real_broker import real_broker

from jgpu.wire.address import admin_socket


@pytest.fixture
def broker():
    """An administrators' socket, in a directory whose path leaves room for what lies below it."""
    with tempfile.TemporaryDirectory(prefix="jgpu-") as name:
        directory = Path(name)
        with real_broker(
            directory, "--device", "null", "--spool", f"{name}/spool", private=False
        ) as found:
            yield admin_socket(found.path)


@pytest.fixture(scope="module")
def needs_lab():
    """Says why no lab can be made here."""
    if reason := lab.missing():
        pytest.skip(reason)
