"""Bit for bit: what the shared device computes is what torch computes alone, at the same threads.

Each module of cases runs twice, natively and through a real broker, in two processes; a test per
case then compares every returned tensor and number by its bytes.
"""

import importlib
import os
import pickle
import sys
from pathlib import Path

import processes
import pytest
from cases import CASES

_HERE = Path(__file__).parent
_RUNNER = _HERE / "runner.py"
MODULES = (
    *("cases_models", "cases_language", "cases_optimizers", "cases_tensors", "cases_random"),
    "cases_ops",
)


def _names(module):
    importlib.import_module(module)
    return [name for name, function in CASES.items() if function.__module__ == module]


def _native():
    threads = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    return {k: v for k, v in os.environ.items() if not k.startswith("JGPU_")} | threads


class Outcomes:
    """What every case of a module gave, natively and on the device; run at first use."""

    def __init__(self, broker, directory):
        self._broker = broker
        self._directory = directory
        self._found = {}

    def of(self, module):
        """Two dicts of outcomes by case: native, device."""
        if module not in self._found:
            native, device = self._directory / f"{module}.cpu", self._directory / f"{module}.cuda"
            with processes.start(
                [sys.executable, str(_RUNNER), "cpu", module, str(native)], env=_native()
            ) as process:
                self._broker.seat(_RUNNER, "cuda", module, device).check()
                assert process.wait() == 0
            self._found[module] = [pickle.loads(out.read_bytes()) for out in (native, device)]
        return self._found[module]


@pytest.fixture(scope="module")
def outcomes(broker, tmp_path_factory):
    return Outcomes(broker, tmp_path_factory.mktemp("outcomes"))


@pytest.mark.e2e
@pytest.mark.parametrize(
    ("module", "name"), [(module, name) for module in MODULES for name in _names(module)]
)
def test_the_device_gives_the_same_bytes_as_native_torch(outcomes, module, name):
    native, device = (found[name] for found in outcomes.of(module))
    assert native[0] == "ok", native[1]
    assert device[0] == "ok", device[1]
    pairs = zip(native[1], device[1], strict=True)
    wrong = [k for k, (want, got) in enumerate(pairs) if want != got]
    assert not wrong, [(k, native[1][k][:2], device[1][k][:2]) for k in wrong[:4]]
