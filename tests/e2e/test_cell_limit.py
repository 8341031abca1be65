"""A limit on what a cell computes, for autograders: waiting for others does not count."""

import pytest
from host import until

pytestmark = [pytest.mark.slow, pytest.mark.e2e]

LOAD = "%load_ext jgpu.device.celllimit"
TOO_LONG = "jgpu: this cell computed for more than 2 s"


@pytest.fixture
def limited(host):
    notebook = host.notebook(JGPU_CELL_LIMIT="2")
    # First, as the first use alone takes longer than that on a loaded machine.
    notebook.ok("import torch; x = torch.ones(300, 300, device='cuda'); (x @ x / 300).sum().item()")
    notebook.ok(LOAD)
    return notebook


@pytest.mark.parametrize(
    "endless",
    [
        "while True: pass",
        "import time\nwhile True: time.sleep(0.1)",
        "while True: x = x @ x / 300; x.sum().item()",
        "while True: x = x @ x / 300",
    ],
    ids=["host", "sleep", "device", "device without looking"],
)
def test_a_cell_that_does_not_end_is_ended_with_a_sentence(limited, endless):
    said = limited.run(endless)
    assert said.error == "KeyboardInterrupt"
    assert TOO_LONG in said.stderr
    # What it left behind is computed first and counts, for it is the notebook's own; the
    # interrupt of a cell that waits for it takes it back, and x with it.
    again = "torch.ones(2, device='cuda').sum().item()"
    until(lambda: not limited.run(again).error, "a cell within its limit")


def test_a_cell_that_catches_the_interrupt_gets_another(limited):
    said = limited.run(
        "while True:\n    try:\n        while True: pass\n    except KeyboardInterrupt:\n"
        "        if 'again' in globals(): raise\n        again = True"
    )
    assert said.error == "KeyboardInterrupt"
    assert said.stderr.count(TOO_LONG) == 1


def test_waiting_for_others_is_not_counted(host, limited):
    neighbour = host.notebook("other.ipynb", "user2")
    neighbour.ok("import torch; a = torch.ones(4000, 4000, device='cuda'); a[0, 0].item()")
    # One program of some ten seconds, which is not cut.
    busy = neighbour.begin(
        "b = a\nfor _ in range(8): b = a @ b / 4000\nprint('begun', flush=True)\nb[0, 0].item()"
    )
    said = limited.run(
        "import time\nbegan = time.monotonic()\n"
        "for _ in range(3): value = (x @ x)[0, 0].item()\n"
        "print(value, time.monotonic() - began > 2)"
    )
    assert not said.error, said.shown
    assert said.stdout.split() == ["300.0", "True"]
    assert not neighbour.end(busy).error


def test_a_limit_that_is_no_number_is_told(host):
    notebook = host.notebook(JGPU_CELL_LIMIT="soon")
    assert "'soon'; it has to be a number of seconds" in notebook.run(LOAD).stderr
