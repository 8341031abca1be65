"""The command's own tests use the same broker and home as those of the kernels."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "kernelprovider"))

import pytest
from fake_control import FakeControl
from real_broker import real_broker


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    """HOME, Jupyter's directories and the private broker's place are the test's own."""
    for variable in ("JGPU_ADDRESS", "JGPU_TICKET", "JGPU_USER", "XDG_STATE_HOME"):
        monkeypatch.delenv(variable, raising=False)
    path = tmp_path / "home"
    path.mkdir()
    monkeypatch.setenv("HOME", str(path))
    monkeypatch.setenv("JUPYTER_DATA_DIR", str(tmp_path / "data"))
    # The environment that the tests run in has our kernelspec.
    monkeypatch.setattr("jupyter_core.paths.ENV_JUPYTER_PATH", [])
    monkeypatch.setenv("JUPYTER_CONFIG_DIR", str(tmp_path / "config"))
    return path


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
