"""Libraries that students use, unmodified: natively and on the shared device, bit for bit.

Each module of cases runs natively, and three times on the shared device, by the runner of the
parity suite, in an environment that has the libraries. A case trains a tiny model that it makes in
code for a few steps.
"""

import os
import pickle
from pathlib import Path

import processes
import pytest

pytestmark = [pytest.mark.slow, pytest.mark.e2e, pytest.mark.timeout(900)]

_HERE = Path(__file__).parent
_RUNNER = _HERE.parent / "parity" / "runner.py"
#: module of cases, and how many it has at least
MODULES = {"cases_transformers": 7, "cases_trainers": 4, "cases_metrics": 28}


def outcomes(python, device, module, path, environ, runs):
    done = processes.run(
        [python, _RUNNER, device, module, path, "--runs", str(runs)],
        env=environ | {"PYTHONPATH": str(_HERE), "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        timeout=440,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return pickle.loads(path.read_bytes())


@pytest.mark.parametrize("module", MODULES)
def test_a_librarys_results_are_the_native_ones(python, broker, module, tmp_path):
    alone = dict(os.environ) | {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    native = outcomes(python, "cpu", module, tmp_path / "native", alone, 1)
    shared = outcomes(python, "cuda", module, tmp_path / "shared", broker.environment(), 3)
    assert len(native) >= MODULES[module]
    for found in (native, shared):
        told = [(name, text) for name, runs in found.items() for how, text in runs if how != "ok"]
        assert told == []
    assert [name for name, (one,) in native.items() if shared[name] != [one] * 3] == []
