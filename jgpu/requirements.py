"""What jgpu needs besides itself: the releases of torch that it fits, the modules of its extras.

`pyproject.toml` says the same to pip, and a test compares the two. Whoever asks, or tells a person
what to install, reads it here.
"""

from collections.abc import Iterable
from importlib.util import find_spec
from typing import Final

__all__ = ["BROKER", "NOTEBOOKS", "TORCH", "fits_torch", "lacking", "torch_wanted"]

#: release of torch: how it was tried
TORCH: Final = {
    "2.11": "device tests and parity suite, with a CUDA build and no GPU",
    "2.12": "not tried; between two that were",
    "2.13": "everything",
    "2.14": "not tried; between two that were",
    "2.15": "device tests and parity suite, with a CUDA build and no GPU",
}

#: of the extra `broker`: distribution, and its module
BROKER: Final = {
    "numpy": "numpy",
    "nvidia-ml-py": "pynvml",
    "psutil": "psutil",
    "rich": "rich",
    "sqlalchemy": "sqlalchemy",
    "torch": "torch",
}

#: of the extra `notebooks`
NOTEBOOKS: Final = {
    "jupyterlab": "jupyterlab",
    "matplotlib": "matplotlib",
    "nbclient": "nbclient",
    "nbformat": "nbformat",
    "scikit-learn": "sklearn",
}


def fits_torch(version: str) -> bool:
    """Whether a version of torch is of a release that was tried."""
    return ".".join(version.partition("+")[0].split(".")[:2]) in TORCH


def torch_wanted() -> str:
    """What pip is asked for: `torch>=2.11,<2.16`."""
    releases = [tuple(map(int, release.split("."))) for release in TORCH]
    (first, minor), (last, newest) = min(releases), max(releases)
    return f"torch>={first}.{minor},<{last}.{newest + 1}"


def lacking(modules: Iterable[str]) -> list[str]:
    """Those that this interpreter cannot import."""
    return [name for name in modules if find_spec(name) is None]
