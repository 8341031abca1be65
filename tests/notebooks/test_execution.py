"""nbval on every lesson, its kernel routed to a shared device as `--all-kernels` routes it.

nbval reads no server's configuration; the environment tells it the provisioner. Cells marked for
it must print what is stored.
"""

import processes
import contextlib
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[1] / "e2e"))

from host import Host

#: of one lesson, where an op costs most of a millisecond
_LONGEST_S = 1800
pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(_LONGEST_S + 20)]

LESSONS = sorted((Path(__file__).parents[2] / "notebooks").glob("*.ipynb"))


@pytest.fixture(
    scope="module",
    params=["cpu", pytest.param("cuda-on-host", marks=pytest.mark.long)],
)
def host(tmp_path_factory, request):
    with contextlib.closing(Host(tmp_path_factory.mktemp("lessons"), request.param)) as made:
        yield made.start()


def device_seconds(host):
    return sum(user["device_seconds"] for user in host.status()["users"])


@pytest.mark.parametrize("lesson", LESSONS, ids=lambda path: path.stem)
def test_a_lesson_prints_what_is_stored(host, lesson):
    before = device_seconds(host)
    done = processes.run(
        [
            sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:timeout",
            "--nbval-lax", "--nbval-cell-timeout=1200", "-o", "addopts=", "-o", "filterwarnings=",
            str(lesson),
        ],
        env=host.environ | {"JUPYTER_DEFAULT_PROVISIONER_NAME": "jgpu-provisioner"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=_LONGEST_S,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-8000:]
    assert device_seconds(host) > before  # it did run on the shared device
