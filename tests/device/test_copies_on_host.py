"""With jgpu loaded, copies and pickles of what is on the host are those of torch alone."""

import pickle
import sys
from pathlib import Path

import processes
import pytest

_SCRIPT = Path(__file__).parent / "copied.py"


@pytest.mark.e2e
@pytest.mark.timeout(400)
def test_copies_on_the_host_are_as_without_jgpu(broker, tmp_path):
    seat = broker.environment()
    native = {k: v for k, v in seat.items() if not k.startswith("JGPU_")}
    found = []
    for name, environment in (("native", native), ("seat", seat)):
        out = tmp_path / name
        processes.run(
            [sys.executable, str(_SCRIPT), str(out)], env=environment, timeout=180, check=True
        )
        found.append(pickle.loads(out.read_bytes()))
    alone, loaded = found
    assert [pair for pair in alone if alone[pair] != loaded[pair]] == []
