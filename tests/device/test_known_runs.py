"""A GPU's executor interprets no program that it knows, unless an op of it waits natively, too."""

import sys
from pathlib import Path

import pytest
from seat import broker_on

HERE = Path(__file__).parent
#: where torch's own calls wait for the stream: `masked_select`, an index that is a mask and
#: `multinomial` read what decides a size or is checked; CTC copies its lengths from the host
WAITING = {
    *("aten::masked_select", "aten::index.Tensor", "aten::multinomial"),
    *("aten::_ctc_loss", "aten::_ctc_loss_backward"),
}


@pytest.mark.e2e
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_known_programs_are_interpreted_only_where_torch_itself_waits(tmp_path):
    noted = tmp_path / "noted"
    noted.touch()
    command = [sys.executable, HERE / "counting_executor.py", noted]
    options = [f"--JgpuBroker.executor_command={each}" for each in command]
    with broker_on("cuda-on-host", tmp_path, *options) as broker:
        done = broker.seat(HERE / "everyday_programs.py", timeout_s=800).check()
    assert len(done.out.splitlines()) == 29
    assert set(noted.read_text().splitlines()) == WAITING
