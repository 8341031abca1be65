"""What jgpu needs besides itself: the releases of torch that it fits, the modules of its extras.

`pyproject.toml` and the documentation say the same, and tests compare them. Whoever asks, or tells
a person what to install, reads it here. What becomes of a torch that nobody has tried is
`jgpu.untried`'s.
"""

import re
from collections.abc import Iterable
from importlib.util import find_spec
from typing import Final, NamedTuple

__all__ = [
    "BROKER",
    "NOTEBOOKS",
    "TORCH",
    "TriedTorch",
    "is_too_old",
    "lacking",
    "torch_tried",
    "torch_wanted",
    "was_tried",
]


class TriedTorch(NamedTuple):
    """How a release of torch was tried, and when it was last."""

    #: version and build
    build: str
    ran: str
    #: ISO date
    date: str
    result: str


_SUITES: Final = "device tests, parity suite, with the accelerator"
#: by release
TORCH: Final = {
    "2.11": TriedTorch(
        "2.11.0+cu130, no GPU",
        f"{_SUITES}; programs on 2026-11-23",
        "2026-11-25",
        "passed; of programs' tests one asked for ops that this release lacks (it knows now)",
    ),
    "2.12": TriedTorch("2.12.1+cu130, no GPU", _SUITES, "2026-11-25", "passed"),
    "2.13": TriedTorch("2.13.0+cpu", "everything", "", "the tests are written with it"),
    "2.14": TriedTorch("2.14.1+cu130, no GPU", _SUITES, "2026-11-25", "passed"),
    "2.15": TriedTorch(
        "2.15.0+cu132, no GPU",
        f"{_SUITES}; lessons, parity on a CUDA without a GPU",
        "2026-11-25",
        "passed; the device tests again on 2026-11-27, once what they found was mended",
    ),
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

#: what a version that is no release has in its public part: 2.16.0a0, 2.15.0rc2, 2.15.0.dev20261101
_UNRELEASED: Final = re.compile(r"a|b|rc|dev")


def was_tried(version: str) -> bool:
    """Whether a version of torch is of a release that was tried; what comes before it is not."""
    public = version.partition("+")[0]
    return ".".join(public.split(".")[:2]) in TORCH and not _UNRELEASED.search(public)


def is_too_old(version: str) -> bool:
    """Whether a version of torch is of a release before all that were tried."""
    release = re.match(r"(\d+)\.(\d+)", version)
    return release is not None and tuple(map(int, release.groups())) < min(_releases())


def _releases() -> list[tuple[int, ...]]:
    return [tuple(map(int, release.split("."))) for release in TORCH]


def torch_wanted() -> str:
    """What pip is asked for: `torch>=2.11`. A newer one than those tried checks itself."""
    first, minor = min(_releases())
    return f"torch>={first}.{minor}"


def torch_tried() -> str:
    """What to install where a torch does not fit: `torch>=2.11,<2.16`."""
    last, newest = max(_releases())
    return f"{torch_wanted()},<{last}.{newest + 1}"


def lacking(modules: Iterable[str]) -> list[str]:
    """Those that this interpreter cannot import."""
    return [name for name in modules if find_spec(name) is None]
