"""A home of a test's own, for whoever starts kernels or brokers."""

import os

from jgpu.kernelprovider.environment import HIDDEN


def make_home(tmp_path, monkeypatch):
    """Have HOME, Jupyter's directories and the private broker's place be the test's own."""
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
