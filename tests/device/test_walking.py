"""No function of `torch.accelerator` and `torch.cuda` ends the process, whenever it is called."""

from pathlib import Path

import pytest

WALK = (Path(__file__).parent / "walking.py").read_text()


@pytest.mark.e2e
@pytest.mark.parametrize("when", ["before", "after"])
def test_no_function_of_the_accelerator_ends_the_process(broker, when):
    lines = broker.seat(WALK, when).check().out.splitlines()
    assert len(lines) > 1000
    assert lines[-2:] == ["asserted: []", "2.0"]
