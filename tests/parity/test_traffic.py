"""Round trips and programs of a training step: one wait for `loss.item()`, none without, and no
new program once a loop runs.
"""

import json
from pathlib import Path

import pytest
from cases_optimizers import OPTIMIZERS, SCHEDULERS

from jgpu.device.client.oplog import JOINTED, PIECES

_COUNTER = Path(__file__).parent / "traffic.py"
#: These read values of their state back to the host at each step, on every device.
READ_BACK = {"asgd", "adafactor"}


@pytest.fixture(scope="module")
def counts(broker, tmp_path_factory):
    out = tmp_path_factory.mktemp("traffic") / "counts.json"
    broker.seat(_COUNTER, out).check()
    return json.loads(out.read_text())


@pytest.mark.e2e
@pytest.mark.parametrize("name", [*(n for n in OPTIMIZERS if n not in READ_BACK), *SCHEDULERS])
def test_a_step_waits_for_its_loss_and_for_nothing_else(counts, name):
    assert counts[name]["with_item"] == 1
    assert counts[name]["streamed"] == 0


def pieces(ops, sizes):
    """In how many pieces so many ops are sent, if they have these sizes."""
    upcoming, count = iter(sizes), 0
    while ops > 0:
        ops, count = ops - next(upcoming, sizes[-1]), count + 1
    return count


@pytest.mark.e2e
@pytest.mark.parametrize("name", [*(n for n in OPTIMIZERS if n not in READ_BACK), *SCHEDULERS])
def test_a_loop_settles_to_the_same_programs(counts, name):
    ops = counts[name]["ops"]
    shortened = [size if size < JOINTED else size - size // 3 for size in PIECES]
    assert pieces(ops, PIECES) <= counts[name]["programs"] <= pieces(ops, shortened)
