"""The command's own tests use the same broker and home as those of the kernels."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "kernelprovider"))

import pytest
from fake_control import FakeControl
from real_broker import real_broker


@pytest.fixture(autouse=True)
def _at_home(home):
    """Every test here has a home of its own."""


@pytest.fixture
def control(tmp_path, monkeypatch):
    """A fake broker that JGPU_ADDRESS names."""
    fake = FakeControl(tmp_path / "broker.sock").start()
    monkeypatch.setenv("JGPU_ADDRESS", fake.address)
    yield fake
    fake.stop()


@pytest.fixture
def broker(tmp_path, monkeypatch):
    """A real one that computes nothing."""
    with real_broker(tmp_path, "--device", "null") as address:
        monkeypatch.setenv("JGPU_ADDRESS", str(address))
        yield address
