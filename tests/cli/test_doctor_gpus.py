"""What `jgpu doctor` says of GPUs, by what a driver's library answers."""

import sys
from types import SimpleNamespace

import pytest

from jgpu.cli import _gpus, doctor


class NVMLError(Exception):
    """The library's."""


class Driver:
    """The library's calls for one GPU; what is asked and not given raises as it does."""

    NVMLError = NVMLError

    def __init__(self, **answers):
        self.answers = {
            "nvmlInit": None,
            "nvmlShutdown": None,
            "nvmlSystemGetDriverVersion": b"580.65",
            "nvmlDeviceGetCount": 1,
            "nvmlDeviceGetHandleByIndex": 0,
            "nvmlDeviceGetMemoryInfo": SimpleNamespace(total=24 << 30),
            "nvmlDeviceGetName": b"NVIDIA A10",
            "nvmlDeviceGetComputeMode": 0,
            "nvmlDeviceGetMigMode": NVMLError("Not Supported"),
            "nvmlDeviceGetCudaComputeCapability": (8, 6),
        } | answers

    def __getattr__(self, name):
        def call(*arguments):
            answer = self.answers[name]
            if isinstance(answer, Exception):
                raise answer
            return answer

        return call


@pytest.fixture
def said(monkeypatch):
    """The findings for a driver that answers so; no other GPU is there."""

    def findings(nodes=(), *, plugged_in=False, cuda=(13, 0), **answers):
        monkeypatch.setitem(sys.modules, "pynvml", Driver(**answers))
        monkeypatch.setattr(_gpus.os.path, "exists", lambda path: path in nodes)
        monkeypatch.setattr(_gpus, "gpu_is_plugged_in", lambda: plugged_in)
        monkeypatch.setattr(_gpus, "_cuda_of_torch", lambda: cuda)
        monkeypatch.setattr(_gpus, "_locked_memory", lambda: iter(()))
        return [(f.state, f.text, f.advice) for f in doctor.check_gpu()]

    return findings


FINE = ("ok", "0: NVIDIA A10, 24.0 GiB, driver 580.65.", "")


def test_a_gpu_that_can_be_used_is_one_line(said):
    assert said() == [FINE]


def test_a_host_without_a_gpu_says_who_serves(said):
    (line,) = said(nvmlInit=NVMLError("NVML Shared Library Not Found"))
    assert line == ("note", "No GPU here; brokers serve from the CPU (device cpu).", "")


@pytest.mark.parametrize(
    ("answers", "words", "advice"),
    [
        (
            {"nvmlInit": NVMLError("NVML Shared Library Not Found"), "plugged_in": True},
            "No NVIDIA driver answers",
            "Install it",
        ),
        (
            {"nvmlInit": NVMLError("Driver/library version mismatch"), "plugged_in": True},
            "version mismatch. No NVIDIA driver answers",
            "restart the host",
        ),
        (
            {"nvmlDeviceGetHandleByIndex": NVMLError("GPU is lost")},
            "The GPU is lost",
            "look at its power",
        ),
        (
            {"nvmlDeviceGetCount": NVMLError("GPU requires reset")},
            "The driver fails: GPU requires reset.",
            "nvidia-smi --gpu-reset",
        ),
        ({"nvmlDeviceGetComputeMode": 2}, "compute mode is Prohibited", "nvidia-smi -c DEFAULT"),
        (
            {
                "nvmlDeviceGetComputeMode": 3,
                "nvmlDeviceGetComputeRunningProcesses": [SimpleNamespace(pid=4711)],
            },
            "in exclusive mode, and process 4711 has it",
            "End that process",
        ),
        (
            {"nvmlDeviceGetCudaComputeCapability": (7, 0)},
            "compute capability is 7.0; torch for CUDA 13.0 needs 7.5",
            "Install a build of torch for another CUDA",
        ),
        (
            {"nvmlDeviceGetMigMode": (1, 1), "nvmlDeviceGetMaxMigDeviceCount": 0},
            "MIG mode and has no instance",
            "nvidia-smi mig",
        ),
    ],
)
def test_what_keeps_a_gpu_from_being_used_is_one_problem_that_says_what_to_do(
    said, answers, words, advice
):
    (state, text, what) = next(line for line in said(**answers) if line != FINE)
    assert state == "problem"
    assert words in text
    assert advice in what


def test_an_instance_of_a_gpu_is_named_for_the_broker(said):
    found = said(
        nvmlDeviceGetMigMode=(1, 1),
        nvmlDeviceGetMaxMigDeviceCount=1,
        nvmlDeviceGetMigDeviceHandleByIndex=0,
        nvmlDeviceGetUUID="MIG-5c89",
    )
    assert found[1][0] == "note"
    assert "CUDA_VISIBLE_DEVICES=MIG-5c89" in found[1][2]


def test_a_gpu_that_one_process_at_a_time_may_use_is_noted(said):
    found = said(nvmlDeviceGetComputeMode=3, nvmlDeviceGetComputeRunningProcesses=[])
    assert found[1][:2] == (
        "note",
        "0: it is in exclusive mode: one broker may use it, and nobody beside it.",
    )


def test_a_small_limit_of_locked_memory_is_noted():
    (line,) = _gpus._locked_memory(lambda which: (64 << 10, 64 << 10))
    assert line[1] == "note"
    assert "64 KiB" in line[2]
    assert "LimitMEMLOCK" in line[3]
    assert list(_gpus._locked_memory(lambda which: (-1, -1))) == []
