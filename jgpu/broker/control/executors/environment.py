"""The environment of executor processes: what must be there, or gone, before torch is imported.

An executor computes what native torch computes, so nothing that a shell set for other programs
(thread counts, our own entry point, other backends) may reach it unseen.
"""

from collections.abc import Mapping
from typing import Final

__all__ = ["executor_environment"]

#: A ticket would turn the executor into a client. The broker alone notifies systemd.
_REMOVED: Final = frozenset({"JGPU_ADDRESS", "JGPU_TICKET", "NOTIFY_SOCKET", "PYTHONSTARTUP"})
#: Prefixes of variables that torch and the libraries below it read. Some choose kernels, and so
#: bits; some make each launch wait, or log it. Thread counts are settings of the broker, switches
#: part of each program. Administrators set others in `extra`.
_LIBRARIES: Final = (
    *("ATEN_", "TORCH_", "TORCHINDUCTOR_", "PYTORCH_", "DISABLE_ADDMM_CUDA_LT"),
    *("CUBLAS", "CUDNN_", "CUSOLVER", "CUSPARSE", "CUFFT", "NVIDIA_TF32_OVERRIDE", "NVRTC_"),
    *("CUDA_LAUNCH_BLOCKING", "CUDA_FORCE_", "CUDA_DISABLE_", "CUDA_MODULE_", "CUDA_ENABLE_"),
    *("GOMP_", "KMP_", "MKL_", "OMP_", "OPENBLAS_", "DNNL_", "ONEDNN_", "VECLIB_"),
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
_HIDE_GPUS: Final = {"CUDA_VISIBLE_DEVICES": ""}


def executor_environment(
    inherited: Mapping[str, str], device: str, extra: Mapping[str, str], gpu: str = ""
) -> dict[str, str]:
    """The environment for an executor of `device`; `extra` is the administrator's, and wins.

    `gpu`: the one that a `cuda` executor sees, and calls 0.
    """
    environment = {
        name: value
        for name, value in inherited.items()
        if name not in _REMOVED and not name.startswith(_LIBRARIES)
    }
    environment |= _SET | (_SET_CUDA if device == "cuda" else _HIDE_GPUS)
    if device == "cuda" and gpu:
        environment["CUDA_VISIBLE_DEVICES"] = gpu
    return environment | dict(extra)
