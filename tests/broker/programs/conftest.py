"""Compiled runs in both of their forms."""

import pytest

from jgpu.accelerator import loading
from jgpu.broker.executor.programs.running import assembly


@pytest.fixture(params=["accelerator", "plain"])
def form(request, monkeypatch):
    """Compiled runs are done by the accelerator, or by a function in Python."""
    if request.param == "plain":
        monkeypatch.setattr(assembly.loading, "load", lambda: None)
    elif loading.load() is None:
        pytest.skip("the accelerator is not built here")
    return request.param
