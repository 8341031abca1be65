"""Runs the tests of `on_device` inside a process with a seat at a real broker.

They are ordinary tests; only their process differs: there `cuda` is the shared device. A few files
share a process, for most of the time of one is its start.
"""

import json
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import processes
import pytest
from results import write_result

FOLDER = Path(__file__).parent / "on_device"
_AT_ONCE = 9
#: it loses the device, and with it what others have made when they were collected
_ALONE = "test_interrupted.py"
#: part of each import of PyTorch's test databases, whose many objects slow other files down
_DATABASES = "torch.testing._internal"


def _groups():
    """File names by process; files that need the databases share one."""
    with_databases, others = [], []
    for path in sorted(FOLDER.glob("test_*.py")):
        kept = with_databases if _DATABASES in path.read_text() else others
        kept.append(path.name)
    others.remove(_ALONE)
    groups = [others[at : at + _AT_ONCE] for at in range(0, len(others), _AT_ONCE)]
    return [with_databases, *groups, [_ALONE]]


@pytest.mark.e2e
@pytest.mark.timeout(600)
@pytest.mark.parametrize("files", _groups(), ids=" ".join)
def test_on_the_shared_device(broker, files):
    paths = [str(FOLDER / file) for file in files]
    done = processes.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *paths],
        env=broker.environment(),
        capture_output=True,
        text=True,
        timeout=580,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout[-12000:]}\n{done.stderr[-4000:]}"


#: sequences of aliases of the long test, so many in a process
_SEQUENCES, _CHUNK = 100_000, 5_000


def sequences(broker, first):
    """Run a chunk of the sequences of aliases in another process; return pytest's output."""
    done = processes.run(
        [
            *(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"),
            *(str(FOLDER / "test_aliasing.py"), "-k", "random_sequences"),
        ],
        env=broker.environment(JGPU_FIRST=str(first), JGPU_SEQUENCES=str(_CHUNK)),
        capture_output=True,
        text=True,
        timeout=3 * 3600,
        check=False,
    )
    said = done.stdout[-12000:] + done.stderr[-2000:]
    if done.returncode:  # printed at once, and whole: an hour may be ahead
        sys.stdout.write(f"from {first}: exit {done.returncode}\n{said}\n")
        sys.stdout.flush()
    return first, done.returncode


@pytest.mark.long
@pytest.mark.e2e
@pytest.mark.timeout(6 * 3600)
def test_a_hundred_thousand_sequences_of_aliases_are_as_natively(broker):
    began = time.monotonic()
    firsts = range(0, _SEQUENCES, _CHUNK)
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda first: sequences(broker, first), firsts))
    assert [(first, status) for first, status in found if status] == []
    figures = {"sequences": len(firsts) * _CHUNK, "steps of each": 16, "differences": 0}
    write_result("aliasing", figures | {"seconds": round(time.monotonic() - began)})


@pytest.mark.long
@pytest.mark.e2e
@pytest.mark.timeout(6 * 3600)
def test_interrupts_at_every_wire_step_twenty_times_over_lose_no_session(broker, tmp_path):
    began, figures = time.monotonic(), tmp_path / "figures.json"
    done = processes.run(
        [
            *(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"),
            *(str(FOLDER / "test_interrupted.py"), "-k", "any_wire_step"),
        ],
        env=broker.environment(JGPU_EVERY="1", JGPU_ROUNDS="20", JGPU_FIGURES=str(figures)),
        capture_output=True,
        text=True,
        timeout=6 * 3600,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-12000:]
    found = json.loads(figures.read_text()) | {"lost_sessions": 0}
    write_result("interrupts", found | {"seconds": round(time.monotonic() - began)})
