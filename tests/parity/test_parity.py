"""Bit for bit: what the shared device computes is what torch computes alone, at the same threads.

Each module of cases runs natively once, and through a real broker four times: once in a process
that leaves what it leaves in the executor, then three times in another, always in another order. A
test per case then compares every returned tensor and number of all four by its bytes: the first
time that a program is met and those after it, when it is compiled and values are told unasked.
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
        """By case: the native outcome, and those on the device."""
        if module not in self._found:
            paths = [self._directory / f"{module}.{k}" for k in range(3)]
            with processes.start(
                [sys.executable, str(_RUNNER), "cpu", module, str(paths[0])], env=_native()
            ) as process:
                self._broker.seat(_RUNNER, "cuda", module, paths[1], "--order", 1).check()
                again = "--order", 2, "--runs", 3
                self._broker.seat(_RUNNER, "cuda", module, paths[2], *again, timeout_s=400).check()
                assert process.wait(400) == 0
            native, first, later = (pickle.loads(path.read_bytes()) for path in paths)
            self._found[module] = {
                name: (outcome, first[name] + later[name]) for name, (outcome,) in native.items()
            }
        return self._found[module]


@pytest.fixture(scope="module")
def outcomes(broker, tmp_path_factory):
    return Outcomes(broker, tmp_path_factory.mktemp("outcomes"))


@pytest.mark.e2e
@pytest.mark.timeout(600)  # the first of a module's has to run them all
@pytest.mark.parametrize(
    ("module", "name"), [(module, name) for module in MODULES for name in _names(module)]
)
def test_the_device_gives_the_same_bytes_as_native_torch(outcomes, module, name):
    (how, native), shared = outcomes.of(module)[name]
    assert how == "ok", native
    assert len(shared) == 4
    for run, (how, device) in enumerate(shared):
        assert how == "ok", (run, device)
        pairs = zip(native, device, strict=True)
        wrong = [k for k, (want, got) in enumerate(pairs) if want != got]
        assert not wrong, (run, [(k, native[k][:2], device[k][:2]) for k in wrong[:4]])
