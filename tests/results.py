"""Figures of long tests, kept in `bench/results`, one file per measurement.

A test marked `long` writes what it measured when it is through, whether it found faults or not:

    from results import write_result

    write_result("hostile-values", {"ops": 1204, "cases": 81_530, "deaths": 0, "hangs": 0})

makes `bench/results/2026-11-22-cpu-hostile-values.json`, with date, commit, host and torch beside
the figures. A second run on the same day replaces the first. Programs that are run by hand do the
same after `sys.path.append(<the folder tests>)`.

Does not cover `jgpu bench`, which writes files of its own with `--json`.
"""

import json
import os
import platform
import subprocess
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

__all__ = ["read_result", "write_result"]

_ROOT = Path(__file__).parents[1]
_FOLDER = _ROOT / "bench" / "results"
#: what was measured before changes nothing that is measured
_FIGURES = ":!bench/results"


def write_result(name, figures, *, device="cpu", folder=_FOLDER, torch=None):
    """Write `figures` (what JSON can hold) to the file of today; its path.

    `name` says what was measured, in words with hyphens; `torch` which one it was measured with,
    where it is another environment's. A ValueError for a figure that would replace what every file
    says of itself.
    """
    today = datetime.now(UTC).date().isoformat()
    about = {
        "measured": name,
        "date": today,
        "device": device,
        "commit": _git("rev-parse", "HEAD") or "unknown",
        "changed": bool(_git("status", "--porcelain", "--untracked-files=no", "--", ".", _FIGURES)),
        "host": {
            "machine": platform.machine(),
            "cores": os.cpu_count(),
            "python": platform.python_version(),
            "load": round(os.getloadavg()[0], 2),
        },
        "torch": _torch() if torch is None else torch,
    }
    if taken := about.keys() & figures.keys():
        raise ValueError(f"{sorted(taken)}: every file has these already; name the figures else")
    path = _path(name, device, folder, today)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(about | figures, indent=1) + "\n")
    return path


def read_result(name, *, device="cpu", folder=_FOLDER):
    """What a run of today wrote, for who adds to it; {} where none did."""
    path = _path(name, device, folder, datetime.now(UTC).date().isoformat())
    return json.loads(path.read_text()) if path.exists() else {}


def _path(name, device, folder, day):
    return Path(folder) / f"{day}-{device}-{name}.json"


def _git(*words):
    """What git says of this tree; "" where there is no git or no repository."""
    try:
        done = subprocess.run(
            ["git", "-c", f"safe.directory={_ROOT}", *words],
            cwd=_ROOT,
            capture_output=True,
            text=True,
            check=False,
            timeout=30,
        )
    except OSError:
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def _torch():
    try:
        return version("torch")
    except PackageNotFoundError:
        return ""
