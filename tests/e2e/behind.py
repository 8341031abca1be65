"""A virtual environment of other packages that sees ours behind itself; ours is not disturbed.

Where no package index can be reached, the test that asked skips with pip's last words.
"""

import sys
import sysconfig
from pathlib import Path

import processes
import pytest

CONSTRAINTS = Path(__file__).parents[2] / "constraints.txt"


def pip(python, *arguments):
    """Run pip; skip the test that asked where it cannot get what it needs."""
    command = [python, "-m", "pip", "--disable-pip-version-check", *arguments]
    answer = processes.run(command, capture_output=True, text=True, timeout=600)
    if answer.returncode:
        said = (answer.stderr.strip().splitlines() or ["it said nothing"])[-1]
        pytest.skip(f"What this test needs cannot be had from a package index: {said}")


def environment(prefix, requirements):
    """The interpreter of a new environment with these requirements, and all that ours has."""
    processes.run([sys.executable, "-m", "venv", prefix], check=True)
    python = prefix / "bin" / "python"
    ours = sysconfig.get_path("purelib")
    site = Path(sysconfig.get_path("purelib", vars={"base": str(prefix)}))
    (site / "ours.pth").write_text(f"import site; site.addsitedir({ours!r})\n")
    pip(
        python, "install", "--quiet", "--constraint", CONSTRAINTS, "--requirement", requirements
    )  # fmt: skip
    return python
