"""The same seed gives the same random numbers as natively: on a GPU those of native CUDA.

Two processes draw the same kinds in the same order, one natively, one with a seat at a broker of
that kind of device. Where there is no GPU the comparison with CUDA is skipped; the one with the
CPU, by the same program, is not.
"""

import os
import sys

import processes
import pytest
import torch
from seat import broker_on

from jgpu.gpucheck.stand import RESOURCES

PROGRAM = RESOURCES / "draws.py"

on_gpu = pytest.param(
    "cuda",
    marks=[
        pytest.mark.gpu,
        pytest.mark.skipif(
            not torch.cuda.is_available(),
            reason="there is no CUDA device whose random numbers could be compared",
        ),
    ],
)


def natively(device, path):
    """What a process without a seat draws."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith("JGPU_")}
    how = "native" if device == "cuda" else device
    processes.run([sys.executable, PROGRAM, how, path], env=clean, check=True, timeout=200)
    return torch.load(path)


def shared(device, path):
    """What a process draws whose `cuda` is the shared device."""
    with broker_on(device, path.parent) as broker:
        hidden = {"CUDA_VISIBLE_DEVICES": ""}  # as in a kernel
        broker.seat(PROGRAM, "shared", path, timeout_s=200, environment=hidden).check()
    return torch.load(path)


@pytest.mark.e2e
@pytest.mark.timeout(500)
@pytest.mark.parametrize("device", ["cpu", on_gpu])
def test_random_numbers_are_those_of_the_native_device(device, tmp_path):
    native = natively(device, tmp_path / "native.pt")
    found = shared(device, tmp_path / "shared.pt")
    assert list(found) == list(native)
    other = [name for name in native if not torch.equal(found[name], native[name])]
    assert other == []
    assert torch.equal(found["after the state"], found["after the state, again"])
    for name in native:
        if name.endswith(", first"):
            second = native[name.replace(", first", ", second")]
            assert not torch.equal(native[name], second), f"{name}: drawn twice, and the same"
