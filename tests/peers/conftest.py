"""The peers' own tests, from their source archives, and an environment of their own to run them in.

The peers' test packages and plugins go into a virtual environment of their own (`behind`).
"""

import contextlib
import os
import re
import subprocess
import sys
import tarfile
from importlib.metadata import version
from pathlib import Path

import processes
import pytest

sys.path.append(str(Path(__file__).parents[1] / "e2e"))

from behind import environment, pip
from host import Host

_HERE = Path(__file__).parent
#: Their settings for their own checkouts: coverage, doctests, warnings of today's Python as errors.
_OPTIONS = (
    "-o", "addopts=", "-o", "filterwarnings=", "-o", "asyncio_default_fixture_loop_scope=function",
    "-o", "log_cli_level=CRITICAL", "-p", "no:cacheprovider", "-p", "seats_counted", "-q", "-rfE",
)  # fmt: skip


class Peers:
    """Where the peers' tests lie, what runs them, and the environment that routes their kernels."""

    def __init__(self, directory, address):
        self.directory = directory
        self.python = environment(directory / "environment", _HERE / "requirements.txt")
        home = directory / "home"
        home.mkdir()
        outside = {
            name: value
            for name, value in os.environ.items()
            # Without "CI" they leave nothing out, and the counts of kernels hold everywhere.
            if name != "CI"
            and not name.startswith(
                ("JGPU_", "JUPYTER_", "JPY_", "PYTEST_", "COV_", "PYTHON", "MPL")
            )
        }
        self.environ = outside | {
            "HOME": str(home),
            "JGPU_ADDRESS": str(address),
            "JUPYTER_DEFAULT_PROVISIONER_NAME": "jgpu-provisioner",
            "PYTHONPATH": str(_HERE),
        }

    def source(self, name):
        """The tests of the very version that is installed here, unpacked without the package."""
        top = f"{name}-{version(name)}"
        if not (self.directory / top).exists():
            pip(
                sys.executable, "download", "--quiet", "--no-deps", f"--no-binary={name}",
                "--dest", self.directory, f"{name}=={version(name)}",
            )  # fmt: skip
            with tarfile.open(self.directory / f"{top}.tar.gz") as archive:
                wanted = [
                    member
                    for member in archive.getmembers()
                    if member.name.startswith((f"{top}/tests/", f"{top}/pyproject.toml"))
                ]
                archive.extractall(self.directory, wanted, filter="data")
        return self.directory / top

    def run(self, name, *arguments, timeout_s):
        """Run some of a peer's tests: exit status, what was said, kernels that we provisioned."""
        source = self.source(name)
        answer = processes.run(
            [self.python, "-m", "pytest", *_OPTIONS, *arguments],
            cwd=source,
            env=self.environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=timeout_s,
            check=False,
        )
        counted = re.search(r"^provisioned: (\d+)$", answer.stdout, re.MULTILINE)
        return answer.returncode, answer.stdout, int(counted[1]) if counted else 0


@pytest.fixture(scope="session")
def null_broker(tmp_path_factory):
    """A private broker whose device computes nothing."""
    with contextlib.closing(Host(tmp_path_factory.mktemp("peers-host"), "null")) as host:
        yield host.start()


@pytest.fixture(scope="session")
def peers(tmp_path_factory, null_broker):
    """The environment in which the peers' tests run, their kernels routed to the broker."""
    return Peers(tmp_path_factory.mktemp("peers"), null_broker.address)
