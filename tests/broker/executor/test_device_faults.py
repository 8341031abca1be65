"""What a kernel does to a GPU for good is told apart from what else ends an executor."""

import pytest

from jgpu.broker.executor.process import is_device_fault


@pytest.mark.parametrize(
    "text",
    [
        "CUDA error: device-side assert triggered",
        "CUDA error: an illegal memory access was encountered",
        "CUDA error: misaligned address",
        "CUDA error: unspecified launch failure",
    ],
)
def test_a_fault_of_a_kernel_is_known_by_cudas_words(text):
    assert is_device_fault(RuntimeError(f"{text}\nCompile with `TORCH_USE_CUDA_DSA`"))


@pytest.mark.parametrize(
    "error",
    [RuntimeError("CUDA error: out of memory"), AssertionError("device-side assert"), KeyError(1)],
)
def test_nothing_else_is_taken_for_one(error):
    assert not is_device_fault(error)
