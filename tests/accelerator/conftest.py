"""A place for libraries of a test's own, and a source that compiles in a moment."""

import shutil
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "device"))

import pytest
from seat import cpu_broker

from jgpu.accelerator import building, place

TINY = """
#include <Python.h>
static PyModuleDef made = {PyModuleDef_HEAD_INIT, "jgpu_accelerator"};
PyMODINIT_FUNC PyInit_jgpu_accelerator() { return PyModule_Create(&made); }
"""


@pytest.fixture(scope="session")
def broker(tmp_path_factory):
    """A broker that serves from the CPU."""
    with cpu_broker(tmp_path_factory.mktemp("accelerator")) as running:
        yield running


@pytest.fixture
def built(tmp_path, monkeypatch):
    """Where libraries are put, empty yet."""
    path = tmp_path / "built"
    monkeypatch.setattr(place, "_BUILT", path)
    monkeypatch.delenv(place.SWITCH, raising=False)
    monkeypatch.delenv("CXX", raising=False)
    return path


@pytest.fixture
def source(tmp_path, monkeypatch, built):
    """The source of a library that can do nothing."""
    path = tmp_path / "source"
    path.mkdir()
    (path / "accelerator.cpp").write_text(TINY)
    for module in (place, building):
        monkeypatch.setattr(module, "SOURCE", path)
    return path


@pytest.fixture
def compiler(tmp_path, monkeypatch):
    """Makes the compiler a script of the shell, and says how often it was called."""
    calls = tmp_path / "calls"
    calls.touch()

    def use(script):
        file = tmp_path / "compiler"
        file.write_text(f"#!/bin/sh\necho >> {calls}\n{script}\n")
        file.chmod(0o755)
        monkeypatch.setenv("CXX", str(file))
        return lambda: len(calls.read_text())

    return use


@pytest.fixture
def real_compiler(compiler):
    """The host's, and how often it was called."""
    found = shutil.which("c++") or shutil.which("g++")
    if found is None:
        pytest.skip("there is no C++ compiler here")
    return compiler(f'exec {found} "$@"')
