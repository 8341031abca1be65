"""Libraries that students use, unmodified: natively and on the shared device, bit for bit.

Each module of cases runs natively, and three times on the shared device, by the runner of the
parity suite, in an environment that has the libraries. A case trains a tiny model that it makes in
code for a few steps.

The long test does the same with more libraries, and keeps what was compared.
"""

import os
import pickle
from pathlib import Path

import processes
import pytest
from results import write_result

pytestmark = [pytest.mark.slow, pytest.mark.e2e, pytest.mark.timeout(900)]

_HERE = Path(__file__).parent
_RUNNER = _HERE.parent / "parity" / "runner.py"
#: of the long test, by module of cases
MORE = {
    "cases_equations": "deepinv e3nn neuraloperator torchdiffeq torchsde",
    "cases_learning": "captum opacus pytorch-ignite snntorch stable-baselines3 tensordict "
    "torch-geometric",
    "cases_pictures": "kornia monai pytorch-metric-learning segmentation-models-pytorch timm "
    "torchvision",
    "cases_probability": "botorch gpytorch pyro-ppl zuko",
    "cases_sequences": "diffusers einops peft safetensors vector-quantize-pytorch x-transformers",
}
#: module of cases, and how many it has at least
MODULES = {"cases_transformers": 7, "cases_trainers": 4, "cases_metrics": 28}


def outcomes(python, device, module, path, environ, runs, timeout_s=440):
    done = processes.run(
        [python, _RUNNER, device, module, path, "--runs", str(runs)],
        env=environ | {"PYTHONPATH": str(_HERE), "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        timeout=timeout_s,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return pickle.loads(path.read_bytes())


def compared(python, broker, module, directory, timeout_s=440):
    """How many values of each case of a module are the native ones, in three shared runs."""
    alone = dict(os.environ) | {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    native = outcomes(python, "cpu", module, directory / "native", alone, 1, timeout_s)
    shared = outcomes(
        python, "cuda", module, directory / "shared", broker.environment(), 3, timeout_s
    )
    for found in (native, shared):
        told = [(name, text) for name, runs in found.items() for how, text in runs if how != "ok"]
        assert told == []
    assert [name for name, (one,) in native.items() if shared[name] != [one] * 3] == []
    return {name: len(values) for name, ((_, values),) in native.items()}


@pytest.mark.parametrize("module", MODULES)
def test_a_librarys_results_are_the_native_ones(python, broker, module, tmp_path):
    assert len(compared(python, broker, module, tmp_path)) >= MODULES[module]


@pytest.mark.long
@pytest.mark.timeout(6 * 3600)
def test_the_results_of_more_libraries_are_the_native_ones(python_with_more, broker, tmp_path):
    listed = (_HERE / "requirements-more.txt").read_text().splitlines()
    versions = dict(line.split("==") for line in listed if "==" in line)
    assert {name for names in MORE.values() for name in names.split()} == {
        name for name in versions if name != "transformers"
    }
    figures = {}
    for module in MORE:
        (tmp_path / module).mkdir()
        figures[module] = compared(python_with_more, broker, module, tmp_path / module, 3600)
    write_result("libraries", {"versions": versions, "runs": 3, "values compared": figures})
