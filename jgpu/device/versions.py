"""Which versions of torch this package fits, and what happens with one that does not.

The hook that makes a Python backend is private API of torch: a version is accepted because it was
tried, or checks itself first. A torch that does not fit is left as it is but for one thing: asking
for `cuda` says why it is not there. Nothing falls back to the CPU in silence.
"""

import multiprocessing
import warnings
from typing import Any, Final

import torch

from jgpu.errors import JgpuError, VersionMismatch
from jgpu.untried import fitness_of

__all__ = ["check_parts", "check_version", "name_backend", "refuse"]

#: parts of torch's private API without which nothing works
_PARTS: Final = (
    ("torch._C", "_swap_tensor_impl"),
    ("torch._C", "_set_conj"),
    ("torch._C", "_set_neg"),
    ("torch._C", "_DisableTorchDispatch"),
    ("torch._C._acc", "DeviceGuard"),
    ("torch._C._acc", "register_python_privateuseone_device_guard"),
    ("torch._C._acc", "register_python_privateuseone_hook"),
    ("torch._C", "_rename_privateuse1_backend"),
    ("torch._C._nn", "_parse_to"),
    ("torch.utils.backend_registration", "_DummyPrivateUse1Hook"),
    ("torch.autograd.graph", "_engine_run_backward"),
    ("torch._utils", "_rebuild_tensor"),
)


def check_version(version: str = torch.__version__) -> VersionMismatch | None:
    """Why this torch cannot be used, or None; warns of one that nobody has tried."""
    fitness = fitness_of(version)
    if fitness.problem:
        return VersionMismatch(fitness.problem)
    if fitness.warning and multiprocessing.parent_process() is None:
        warnings.warn(fitness.warning, stacklevel=2)
    return None


def check_parts() -> VersionMismatch | None:
    """Why this build of a version that should fit does not, or None."""
    import importlib

    for module, name in _PARTS:
        try:
            found: Any = importlib.import_module(module)
        except ImportError:
            found = None
            for part in module.split("."):
                found = torch if part == "torch" else getattr(found, part, None)
        if not hasattr(found, name):
            return VersionMismatch(
                f"This build of torch {torch.__version__} lacks {module}.{name}, which the shared "
                "GPU needs. Install the release from PyPI or pytorch.org instead."
            )
    return None


def name_backend() -> VersionMismatch | None:
    """From here on `torch.device("cuda")` is the backend's, and is printed so; or why it is not.

    The name is refused in small letters alone; wherever it is read or printed, it is in these. To
    torch's Python, which has special cases for what was renamed, there is no such backend.
    """
    inner: Any = torch._C
    inner._rename_privateuse1_backend("Cuda")
    inner._get_privateuse1_backend_name = lambda: "privateuseone"
    if torch.device("cuda", 0) == torch.device("privateuseone", 0):
        return None
    return VersionMismatch(
        f"torch {torch.__version__} does not let the shared GPU have the name cuda. Install the "
        "release from PyPI or pytorch.org instead."
    )


def refuse(problem: JgpuError) -> None:
    """Leave torch alone, but let every question for `cuda` raise `problem`."""

    def raise_problem(*args: Any, **kwargs: Any) -> Any:
        raise problem

    cuda: Any = torch.cuda
    for name in ("is_available", "device_count", "init", "_lazy_init", "current_device"):
        setattr(cuda, name, raise_problem)
