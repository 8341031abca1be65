"""Brokers and executors that are killed while notebooks use them: one readable error, no more."""

import os
import signal

import pytest
from host import until

pytestmark = pytest.mark.e2e

MAKE = "import torch; weights = torch.ones(1000, device='cuda'); print(weights.sum().item())"
MODEL = "model = torch.nn.Linear(8, 8).cuda(); keep = torch.ones(3)"
TRAIN = "print('begun', flush=True)\nwhile True: weights.mul_(1.0).sum().item()"


def assert_readable(said):
    assert said.error == "DeviceLost"
    assert "weights" in said.sentence
    assert "model" in said.sentence
    assert "keep" not in said.sentence
    assert "run the cells" in said.sentence.lower()
    assert "Traceback" not in said.shown
    assert len(said.shown.splitlines()) <= 3


def test_a_broker_killed_in_mid_cell_is_one_readable_error(own_host):
    notebook = own_host.notebook()
    assert notebook.ok(f"{MAKE}\n{MODEL}") == "1000.0"
    cell = notebook.begin(TRAIN)
    own_host.kill()
    assert_readable(notebook.end(cell, timeout_s=10))
    without = notebook.run(MAKE)
    assert without.error == "BrokerUnreachable"
    assert notebook.ok("print(keep.sum().item())") == "3.0"
    own_host.start()
    assert notebook.ok(MAKE) == "1000.0"
    lost = notebook.run("model(weights[:8])")
    assert lost.error == "DeviceLost"
    assert notebook.ok(f"{MODEL}; print(tuple(model(weights[:8]).shape))") == "(8,)"


def test_an_executor_killed_in_mid_cell_needs_no_new_connection(own_host):
    notebook = own_host.notebook()
    assert notebook.ok(f"{MAKE}\n{MODEL}") == "1000.0"
    cell = notebook.begin(TRAIN)
    os.kill(own_host.device["pid"], signal.SIGKILL)
    assert_readable(notebook.end(cell))
    assert notebook.ok(MAKE) == "1000.0"
    assert notebook.run("model(weights[:8])").error == "DeviceLost"
    assert own_host.device["restarts"] == 1
    assert list(own_host.sessions) == [notebook.id]


def test_a_broker_killed_between_cells_is_told_in_the_next_one(own_host):
    notebook = own_host.notebook()
    assert notebook.ok(f"{MAKE}\n{MODEL}") == "1000.0"
    own_host.kill()
    own_host.start()
    assert_readable(notebook.run("print(weights.sum().item())"))
    assert notebook.ok(MAKE) == "1000.0"
    until(lambda: notebook.id in own_host.sessions, "the kernel's session")


def test_a_broker_that_is_stopped_tells_everybody_before_it_ends(own_host):
    rests, works = own_host.notebook(), own_host.notebook("other.ipynb")
    for notebook in (rests, works):
        assert notebook.ok(f"{MAKE}\n{MODEL}") == "1000.0"
    cell = works.begin(TRAIN)
    own_host.broker.end()
    own_host.start()
    for said in (works.end(cell), rests.run("print(weights.sum().item())")):
        assert_readable(said)
        assert "The broker was stopped." in said.sentence
    assert rests.ok(MAKE) == works.ok(MAKE) == "1000.0"
