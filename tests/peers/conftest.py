"""The peers' own tests, from their source archives, and an environment of their own to run them in.

Ours is not disturbed: the peers' test packages and plugins go into a virtual environment that sees
ours behind itself. Where no package index can be reached, the tests skip with pip's last words.
"""

import contextlib
import os
import re
import subprocess
import sys
import sysconfig
import tarfile
from importlib.metadata import version
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[1] / "e2e"))

from host import Host

_HERE = Path(__file__).parent
#: Their settings for their own checkouts: coverage, doctests, warnings of today's Python as errors.
_OPTIONS = (
    "-o", "addopts=", "-o", "filterwarnings=", "-o", "asyncio_default_fixture_loop_scope=function",
    "-o", "log_cli_level=CRITICAL", "-p", "no:cacheprovider", "-p", "seats_counted", "-q", "-rfE",
)  # fmt: skip


def pip(python, *arguments):
    """Run pip; skip the test that asked where it cannot get what it needs."""
    command = [python, "-m", "pip", "--disable-pip-version-check", *arguments]
    answer = subprocess.run(command, capture_output=True, text=True, check=False)
    if answer.returncode:
        said = (answer.stderr.strip().splitlines() or ["it said nothing"])[-1]
        pytest.skip(f"The peers' tests cannot be had from a package index: {said}")


class Peers:
    """Where the peers' tests lie, what runs them, and the environment that routes their kernels."""

    def __init__(self, directory, address):
        self.directory = directory
        prefix = directory / "environment"
        subprocess.run([sys.executable, "-m", "venv", prefix], check=True)
        self.python = prefix / "bin" / "python"
        pip(self.python, "install", "--quiet", *self._behind(prefix))
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

    def _behind(self, prefix):
        """Let the environment see ours, editable installations included; what to add to it."""
        ours = sysconfig.get_path("purelib")
        site = Path(sysconfig.get_path("purelib", vars={"base": str(prefix)}))
        (site / "ours.pth").write_text(f"import site; site.addsitedir({ours!r})\n")
        return "--requirement", _HERE / "requirements.txt"

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
        answer = subprocess.run(
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
