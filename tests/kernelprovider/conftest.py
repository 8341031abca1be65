"""A fake broker at the seam, a home of one's own, and kernels that are always ended."""

import contextlib
import os
import signal
import sys
from pathlib import Path

import pytest
from fake_control import FakeControl

from jgpu.kernelprovider.environment import HIDDEN

FAKE_BROKER = Path(__file__).with_name("fake_control.py")


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    """HOME, Jupyter's directories and the private broker's place are the test's own."""
    for variable in [*HIDDEN, *(name for name in os.environ if name.startswith("JGPU_"))]:
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    monkeypatch.delenv("PYTHONSTARTUP", raising=False)
    path = tmp_path / "home"
    path.mkdir()
    monkeypatch.setenv("HOME", str(path))
    monkeypatch.setenv("JUPYTER_DATA_DIR", str(tmp_path / "data"))
    # The environment that the tests run in has our kernelspec.
    monkeypatch.setattr("jupyter_core.paths.ENV_JUPYTER_PATH", [])
    monkeypatch.setenv("JUPYTER_CONFIG_DIR", str(tmp_path / "config"))
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(tmp_path / "runtime"))
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    return path


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
    host = os.uname().nodename.partition(".")[0]
    starts = home / ".local" / "state" / "jgpu" / host[:24] / "starts"
    yield starts
    if starts.exists():
        for pid in starts.read_text().split():
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)
