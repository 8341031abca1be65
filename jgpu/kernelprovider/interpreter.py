"""Another interpreter's environment: what it has, and installing the light package into it.

Kernels live in conda and virtual environments that are not the broker's. What such an environment
needs is jgpu without the broker's extras; torch and ipykernel in it are the user's own.
"""

import json
import shutil
import subprocess
import sys
from dataclasses import dataclass
from importlib.metadata import Distribution
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlparse

from jgpu import __version__
from jgpu.errors import ConfigError

__all__ = ["Interpreter", "examine", "install_client", "requirement"]

_PROBE_TIMEOUT_S: Final = 60.0
#: Runs in the other interpreter: no jgpu, nothing newer than Python 3.8.
_PROBE: Final = """
import importlib.metadata as metadata, json, sys
def version(name):
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return ""
names = ("ipykernel", "jgpu", "msgspec", "pip", "torch")
print(json.dumps({"python": list(sys.version_info[:2]), "executable": sys.executable,
    "prefix": sys.prefix, "platform": sys.platform, "has": {n: version(n) for n in names}}))
"""


@dataclass(frozen=True, slots=True)
class Interpreter:
    """A Python: its path, environment, version, and its packages' versions ("" for none)."""

    executable: str
    prefix: Path
    python: tuple[int, int]
    has: dict[str, str]

    @property
    def missing(self) -> list[str]:
        """Packages a kernel that shares the GPU cannot do without, torch excepted."""
        return [name for name in ("jgpu", "msgspec", "ipykernel") if not self.has[name]]


def examine(python: str) -> Interpreter:
    """Ask an interpreter what it has; `ConfigError` if it is none, or too old for jgpu.

    `python` is a path, a command's name, or the directory of an environment.
    """
    path = _executable(python)
    try:
        answer = subprocess.run(
            [path, "-I", "-c", _PROBE],
            capture_output=True,
            text=True,
            timeout=_PROBE_TIMEOUT_S,
            check=True,
        )
        found = json.loads(answer.stdout)
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        raise ConfigError(f"{path} does not run as a Python of version 3.11 or newer.") from error
    version = (found["python"][0], found["python"][1])
    if version < (3, 11):
        raise ConfigError(f"{path} is Python {version[0]}.{version[1]}; jgpu needs 3.11 or newer.")
    if found["platform"] != "linux":
        raise ConfigError(f"{path} is a Python for {found['platform']}; jgpu runs on Linux only.")
    # Not what the probe says: behind a symlink it may be the base interpreter.
    return Interpreter(path, Path(found["prefix"]), version, found["has"])


def install_client(interpreter: Interpreter) -> Interpreter:
    """Install what is missing with the environment's own pip, or ours where it has none.

    Returns the interpreter examined again; `ConfigError` with pip's last words if that failed.
    """
    own = bool(interpreter.has["pip"])
    pip = (
        [interpreter.executable, "-m", "pip"]
        if own
        else [sys.executable, "-m", "pip", "--python", interpreter.executable]
    )
    command = [*pip, "install", "--quiet", "--disable-pip-version-check", requirement()]
    answer = subprocess.run(
        command, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, check=False
    )
    after = examine(interpreter.executable)
    if answer.returncode or after.missing:
        said = (answer.stderr.strip().splitlines() or ["it said nothing"])[-1]
        raise ConfigError(
            f"jgpu could not be installed into {interpreter.prefix}: {said} "
            f"(command: {' '.join(command)})"
        )
    return after


def requirement() -> str:
    """What pip has to install to get this very jgpu: its source directory, archive or version."""
    text = Distribution.from_name("jgpu").read_text("direct_url.json")
    if text:
        found = json.loads(text)
        url = urlparse(found["url"])
        if url.scheme == "file":
            path = unquote(url.path)
            if Path(path).exists():
                return path
        elif "vcs_info" in found:
            return f"{found['vcs_info']['vcs']}+{found['url']}@{found['vcs_info']['commit_id']}"
        else:
            return str(found["url"])
    return f"jgpu=={__version__}"


def _executable(python: str) -> str:
    if Path(python).is_dir():
        python = str(Path(python, "bin", "python"))
    found = shutil.which(python)
    if found is None:
        raise ConfigError(f"There is no interpreter {python!r}.")
    # Made absolute but not resolved: a virtual environment is known by its symlink.
    return str(Path(found).absolute())
