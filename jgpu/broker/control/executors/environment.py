"""The environment of executor processes: what must be there, or gone, before torch is imported.

An executor computes what native torch computes, so nothing that a shell set for other programs
(thread counts, our own entry point, other backends) may reach it unseen.
"""

from collections.abc import Mapping
from typing import Final

__all__ = ["executor_environment"]

#: Thread counts are settings of the broker; a ticket would turn the executor into a client.
_REMOVED: Final = (
    "JGPU_ADDRESS",
    "JGPU_TICKET",
    "KMP_AFFINITY",
    "MKL_NUM_THREADS",
    "NOTIFY_SOCKET",
    "OMP_NUM_THREADS",
    "OMP_PROC_BIND",
    "OPENBLAS_NUM_THREADS",
    "PYTHONSTARTUP",
    "PYTORCH_CUDA_ALLOC_CONF",
    "PYTORCH_JIT",
)
#: Torch's and the libraries' own switches: a program says its notebook's, nobody else's count.
_ARITHMETIC: Final = (
    "CUBLASLT_WORKSPACE_SIZE",
    "CUBLAS_WORKSPACE_CONFIG",
    "DISABLE_ADDMM_CUDA_LT",
    "NVIDIA_TF32_OVERRIDE",
    "PYTORCH_NO_CUDA_MEMORY_CACHING",
    "PYTORCH_TUNABLEOP_ENABLED",
    "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE",
    "TORCH_BLAS_PREFER_CUBLASLT",
    "TORCH_CUBLASLT_UNIFIED_WORKSPACE",
    "TORCH_DISABLE_NATIVE_AOT",
    "TORCH_LINALG_PREFER_CUSOLVER",
    "TORCH_LINEAR_FLATTEN_3D",
)
_SET: Final = {
    # Other backends' entry points have no place in an executor, and ours would be a mistake.
    "TORCH_DEVICE_BACKEND_AUTOLOAD": "0",
}
_SET_CUDA: Final = {
    # One context, several lanes: freed segments can serve another lane, lanes do not share a queue.
    "PYTORCH_ALLOC_CONF": "expandable_segments:True",
    "CUDA_DEVICE_MAX_CONNECTIONS": "32",
    # The driver's order, so that an index means the same GPU to CUDA and to NVML.
    "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
}
_UNSEEN: Final = frozenset(_REMOVED + _ARITHMETIC)
_HIDE_GPUS: Final = {"CUDA_VISIBLE_DEVICES": ""}


def executor_environment(
    inherited: Mapping[str, str], device: str, extra: Mapping[str, str], gpu: str = ""
) -> dict[str, str]:
    """The environment for an executor of `device`; `extra` is the administrator's, and wins.

    `gpu`: the one that a `cuda` executor sees, and calls 0.
    """
    environment = {name: value for name, value in inherited.items() if name not in _UNSEEN}
    environment |= _SET | (_SET_CUDA if device == "cuda" else _HIDE_GPUS)
    if device == "cuda" and gpu:
        environment["CUDA_VISIBLE_DEVICES"] = gpu
    return environment | dict(extra)
