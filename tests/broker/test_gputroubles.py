"""Each way in which a GPU cannot be used is one sentence that says what to do."""

import pytest

from jgpu.broker.gputroubles import TROUBLES, explained, trouble_of

#: texts as torch, CUDA's runtime, its driver and NVML give them
TEXTS = {
    "Torch not compiled with CUDA enabled": "cpu build",
    "Found no NVIDIA driver on your system. Please check that you have an NVIDIA GPU and installed "
    "a driver from http://www.nvidia.com/Download/index.aspx": "no driver",
    "The NVIDIA driver on your system is too old (found version 11040). Please update your GPU "
    "driver": "old driver",
    "CUDA driver version is insufficient for CUDA runtime version": "old driver",
    "Unexpected error from cudaGetDeviceCount(). Error 803: system has unsupported display driver "
    "/ cuda driver combination": "old driver",
    "Unexpected error from cudaGetDeviceCount(). Error 804: forward compatibility was attempted on "
    "non supported HW": "old driver",
    "Unexpected error from cudaGetDeviceCount(). Error 802: system not yet initialized": "fabric",
    "No CUDA GPUs are available": "hidden",
    "CUDA error: no CUDA-capable device is detected": "hidden",
    "CUDA error: invalid device ordinal\nGPU device may be out of range": "hidden",
    "CUDA error: all CUDA-capable devices are busy or unavailable": "busy",
    "CUDA error: exclusive-thread device already in use by a different thread": "exclusive",
    "CUDA error: no kernel image is available for execution on the device": "too old",
    "CUDA error: out of memory": "used up",
    "CUDA error: unknown error": "lost",
    "CUDA error: uncorrectable ECC error encountered": "lost",
    "CUDA error: hardware stack error": "lost",
    "NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.": "lost",
    "GPU is lost": "lost",
    "NVML Shared Library Not Found": None,
    "Driver/library version mismatch": "no driver",
    "CUDA error: device-side assert triggered": "faulted",
    "CUDA error: an illegal memory access was encountered": "faulted",
    "CUDA error: unspecified launch failure": "faulted",
    "size mismatch, got input (3), mat (3x4), vec (3)": None,
}


@pytest.mark.parametrize(("text", "name"), TEXTS.items())
def test_a_text_of_torch_or_the_driver_is_known_for_what_it_is(text, name):
    found = trouble_of(text)
    assert (found.name if found else None) == name


def test_every_trouble_says_what_happened_and_what_to_do():
    for trouble in TROUBLES:
        assert trouble.sentence.endswith(".")
        assert trouble.advice.endswith(".")
    assert len({trouble.name for trouble in TROUBLES}) == len(TROUBLES)


def test_the_error_that_was_given_stands_behind_the_sentence():
    said = explained(["CUDA error: all CUDA-capable devices are busy or unavailable\nmore"])
    assert said == (
        "The GPU is busy: another process has it for itself, or its compute mode forbids it. See "
        "who has it with `nvidia-smi`; `nvidia-smi -c DEFAULT` lets several processes use it. "
        "(CUDA error: all CUDA-capable devices are busy or unavailable)"
    )


def test_what_led_to_an_error_tells_its_trouble():
    said = explained(["CUDA error: unknown error", "The stream could not be made."])
    assert said.startswith("The GPU is lost")
    assert said.endswith("(The stream could not be made.)")


def test_an_error_that_nobody_knows_is_told_as_it_is():
    assert explained([ValueError("odd")]) == "odd"
    assert explained([ValueError()]) == "ValueError"
