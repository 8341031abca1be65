"""Bit for bit, the shared device computes the results of torch alone, at the same threads.

Each module of cases runs natively once, and through a real broker four times: once in a process
that fills the executor's caches, then three times in another, always in another order. A
test per case then compares every returned tensor and number of all four by its bytes: the first
run of a program and later ones, when it is compiled and values are sent early.
"""

import importlib
import os
import pickle
import sys
from pathlib import Path

import processes
import pytest
from cases import CASES
from seat import broker_on

_HERE = Path(__file__).parent
_RUNNER = _HERE / "runner.py"
MODULES = (
    *("cases_models", "cases_language", "cases_optimizers", "cases_tensors", "cases_random"),
    *("cases_ops", "cases_copies"),
)


def _names(module):
    importlib.import_module(module)
    return [name for name, function in CASES.items() if function.__module__ == module]


def _native():
    threads = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    return {k: v for k, v in os.environ.items() if not k.startswith("JGPU_")} | threads


class Outcomes:
    """Results of every case of a module, natively and on the device; run at first use.

    `judge`: further arguments of the native run.
    """

    def __init__(self, broker, directory, *judge):
        self._broker = broker
        self._directory = directory
        self._judge = judge
        self._found = {}

    def of(self, module):
        """By case: the native outcome, and those on the device."""
        if module not in self._found:
            paths = [self._directory / f"{module}.{k}" for k in range(3)]
            with processes.start(
                [sys.executable, str(_RUNNER), "cpu", module, str(paths[0]), *self._judge],
                env=_native(),
            ) as process:
                self._seat(module, paths[1], "--order", 1)
                self._seat(module, paths[2], "--order", 2, "--runs", 3)
                assert process.wait(400) == 0
            native, first, later = (pickle.loads(path.read_bytes()) for path in paths)
            self._found[module] = {
                name: (outcome, first[name] + later[name]) for name, (outcome,) in native.items()
            }
        return self._found[module]

    def _seat(self, *arguments):
        self._broker.seat(_RUNNER, "cuda", *arguments, timeout_s=400).check()


@pytest.fixture(scope="module")
def outcomes(broker, tmp_path_factory):
    return Outcomes(broker, tmp_path_factory.mktemp("outcomes"))


@pytest.fixture(scope="module")
def outcomes_on_cuda(tmp_path_factory):
    with broker_on("cuda-on-host", tmp_path_factory.mktemp("onhost"), "--threads", "1") as broker:
        yield Outcomes(broker, tmp_path_factory.mktemp("outcomes"), "--as-on-cuda")


#: Cases with repeated sparse indices: CUDA's kernel keeps equal ones in order, the host's does not.
MERGED_BY_THE_HOST = ("copies_of_sparse_embeddings",)

every_case = pytest.mark.parametrize(
    ("module", "name"), [(module, name) for module in MODULES for name in _names(module)]
)


@pytest.mark.e2e
@pytest.mark.timeout(600)  # the first of a module's has to run them all
@every_case
def test_the_device_gives_the_same_bytes_as_native_torch(outcomes, module, name):
    check(*outcomes.of(module)[name])


@pytest.mark.e2e
@pytest.mark.slow
@pytest.mark.timeout(1800)
@every_case
def test_a_cuda_without_a_gpu_gives_the_same_bytes_as_its_kernels_at_once(
    outcomes_on_cuda, module, name
):
    if name in MERGED_BY_THE_HOST:
        pytest.skip("the reference merges sparse entries by the host's kernel, in another order")
    check(*outcomes_on_cuda.of(module)[name])


def check(expected, shared):
    """All runs are those bytes."""
    how, native = expected
    assert how == "ok", native
    assert len(shared) == 4
    for run, (how, device) in enumerate(shared):
        assert how == "ok", (run, device)
        pairs = zip(native, device, strict=True)
        wrong = [k for k, (want, got) in enumerate(pairs) if want != got]
        assert not wrong, (run, [(k, native[k][:2], device[k][:2]) for k in wrong[:4]])
