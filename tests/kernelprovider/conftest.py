"""A fake broker at the seam, a home of one's own, and kernels that are always ended."""

import contextlib
import os
import signal
import sys
from pathlib import Path

import pytest
from fake_control import FakeControl

from jgpu.wire.address import user_directory

FAKE_BROKER = Path(__file__).with_name("fake_control.py")


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
def private_python(home, tmp_path, monkeypatch):
    """A "Python" that starts the fake as the private broker; gives the file of its starts."""
    script = tmp_path / "python"
    script.write_text(f'#!/bin/sh\nexec {sys.executable} {FAKE_BROKER} "$@"\n')
    script.chmod(0o755)
    monkeypatch.setenv("JGPU_BROKER_PYTHON", str(script))
    starts = user_directory() / "starts"
    assert starts.is_relative_to(home)
    yield starts
    if starts.exists():
        for pid in starts.read_text().split():
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)
