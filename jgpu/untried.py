"""A torch that nobody has tried with this jgpu: too old, or checked once by itself.

The self-check (`python -m jgpu.selfcheck`) goes through what torch's private parts are used for, in
processes of its own, since where they do not fit a process may abort. What it found is kept in the
user's cache directory, for this build of torch, this jgpu and this Python. Several processes that
start together wait for one check.

Covers the outcome and its sentences. Does not import torch: `jgpu doctor` asks, too.
"""

import contextlib
import fcntl
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import blake2b
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import jgpu
from jgpu.requirements import TORCH, is_too_old, torch_tried, torch_wanted, was_tried

__all__ = ["CHECKING", "Fitness", "fitness_of"]

#: in the environment of the self-check's own processes, which check nothing
CHECKING: Final = "JGPU_SELF_CHECK"
#: A hanging torch is a torch that does not fit; a busy machine takes some ten seconds.
_LONGEST_S: Final = 120.0
_CHECK: Final = ("-P", "-m", "jgpu.selfcheck")
#: what a shell or a notebook has for its own Python
_REMOVED: Final = ("PYTHONINSPECT", "PYTHONSTARTUP", "PYTHONWARNINGS")
_SET: Final = {
    CHECKING: "1",
    "CUDA_VISIBLE_DEVICES": "",
    "MKL_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "TORCH_DEVICE_BACKEND_AUTOLOAD": "0",
}
_BY_THE_HOST: Final = (signal.SIGKILL, signal.SIGTERM, signal.SIGHUP, signal.SIGINT)


@dataclass(frozen=True, slots=True)
class Fitness:
    """What is to be said of a torch: nothing, a warning, or why it cannot be used."""

    warning: str = ""
    problem: str = ""


def fitness_of(version: str, *, anew: bool = False) -> Fitness:
    """Whether the torch of this interpreter, whose version is given, can be used.

    Takes some seconds where a check is due; `anew` checks whatever is known already.
    """
    releases = [*TORCH]
    first, last = releases[0], releases[-1]
    if is_too_old(version):
        return Fitness(
            problem=f"The shared GPU works with torch {first} and newer, and this environment has "
            f"torch {version}. Install one here: pip install '{torch_wanted()}'"
        )
    if CHECKING in os.environ or was_tried(version):
        return Fitness()
    untried = f"torch {version} was not tried with jgpu {jgpu.__version__} ({first} to {last} were)"
    instead = f"pip install '{torch_tried()}'"
    if fault := _fault(anew=anew):
        return Fitness(
            problem=f"{untried}, and a self-check says that they do not fit: {fault} "
            f"Install a newer jgpu, or a torch that was tried: {instead}"
        )
    return Fitness(
        warning=f"{untried}; a self-check found nothing wrong. "
        f"Where something is, install one that was: {instead}"
    )


def _fault(*, anew: bool) -> str:
    """What the self-check found wrong, now or earlier; empty if nothing."""
    with _alone() as folder:
        place = folder / f"torch-{_subject()}.json" if folder else None
        if not anew and place is not None and (known := _read(place)) is not None:
            return known
        fault, lasts = _check()
        if place is not None:
            with contextlib.suppress(OSError):
                if lasts:
                    written = place.with_suffix(f".{os.getpid()}")
                    written.write_text(json.dumps({"fault": fault}))
                    written.replace(place)
                else:
                    place.unlink(missing_ok=True)
        return fault


@contextlib.contextmanager
def _alone() -> Iterator[Path | None]:
    """The folder of what is known, while no other process of the user checks; None if none."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    try:
        folder = (Path(base) if os.path.isabs(base) else Path.home() / ".cache") / "jgpu"
        folder.mkdir(parents=True, exist_ok=True)
        lock = (folder / "self-check.lock").open("a")
    except (OSError, RuntimeError):  # no home, or not ours: it is checked each time
        yield None
        return
    with lock:
        with contextlib.suppress(OSError):  # a file system without locks
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield folder


def _subject() -> str:
    """A name of what is checked: this build of torch, this jgpu, this Python."""
    found = blake2b(f"{jgpu.__version__} {sys.version}".encode(), digest_size=16)
    spec = find_spec("torch")
    if spec is not None and spec.origin:
        told = Path(spec.origin).with_name("version.py")
        with contextlib.suppress(OSError):
            found.update(f"{told} {told.stat().st_mtime_ns}".encode() + told.read_bytes())
    package = Path(jgpu.__file__).parent
    for path in sorted(package.rglob("*.py")):  # an installation from a checkout changes
        about = path.stat()
        found.update(f"{path} {about.st_size} {about.st_mtime_ns}\n".encode())
    return found.hexdigest()


def _read(place: Path) -> str | None:
    try:
        fault = json.loads(place.read_text())["fault"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return fault if isinstance(fault, str) else None


def _environment() -> dict[str, str]:
    """As this process finds its modules, without what is set for it alone."""
    paths = [path for path in sys.path if path]
    above = str(Path(jgpu.__file__).parents[1])
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("JGPU_") and name not in _REMOVED
    }
    found = paths if above in paths else [*paths, above]
    return kept | _SET | {"PYTHONPATH": os.pathsep.join(found)}


def _check() -> tuple[str, bool]:
    """What is wrong, empty if nothing; and whether it will be the same the next time."""
    try:
        done = subprocess.run(
            [sys.executable, *_CHECK],
            env=_environment(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_LONGEST_S,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        output = error.stdout or b""
        told = output.decode(errors="replace") if isinstance(output, bytes) else output
        return f"{_last_step(told)}was not over after {_LONGEST_S:g} seconds.", False
    except OSError as error:
        return f"it could not be started ({error.strerror}).", False
    return _outcome(done.returncode, done.stdout, done.stderr)


def _outcome(status: int, told: str, complained: str) -> tuple[str, bool]:
    """The fault by how the check ended: it says each step, then what failed or that all is well."""
    lines = told.splitlines()
    if status == 0 and lines and lines[-1] == "done":
        return "", True
    step = _last_step(told)
    if lines and lines[-1].startswith("fault "):
        return f"{step}{lines[-1].removeprefix('fault ')}", True
    said = next(iter(complained.strip().splitlines()[-1:]), "")
    said = f" ({said.strip()[:200]})" if said.strip() else ""
    if status < 0:
        name = signal.Signals(-status).name
        return f"{step}ended the process by {name}{said}.", -status not in _BY_THE_HOST
    return f"{step}ended with status {status}{said}.", True


def _last_step(told: str) -> str:
    steps = [line for line in told.splitlines() if line.startswith("step ")]
    return f"{steps[-1].removeprefix('step ')}: " if steps else ""
