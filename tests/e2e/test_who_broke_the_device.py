"""A kernel breaks the device while others are in flight: they are tried alone, and one is known."""

import contextlib
import sys
from pathlib import Path

import pytest
from host import Host, until

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(600)]

EXECUTOR = Path(__file__).with_name("asserting_executor.py")
MAKE = "import torch; x = torch.ones(4, device='cuda'); print(x.sum().item())"
KILLER = """
print('begun', flush=True)
y = (x * 13).exp().log().round()
y = torch.xlogy(y, x)
print(y.sum().item())
"""
SOUND = """
print('begun', flush=True)
y = (x + x).cos()
print(y.isfinite().all().item())
"""


@pytest.fixture
def hold(tmp_path):
    return tmp_path / "hold"


@pytest.fixture
def host(tmp_path, hold):
    command = [sys.executable, str(EXECUTOR), str(hold)]
    options = [f"--JgpuBroker.executor_command={each}" for each in command]
    options += ["--lanes", "3"]  # one for each notebook: nobody waits for another
    with contextlib.closing(Host(tmp_path, "cuda-on-host", *options)) as made:
        yield made.start()


def together(host, hold, *cells):
    """Run cells of several notebooks that are in flight together; what they are told."""
    pid = host.device["pid"]
    page = host.flight_page()
    hold.touch()
    begun = [notebook.begin(code) for notebook, code in cells]
    users = {host.sessions[notebook.id]["id"] for notebook, _ in cells}
    until(lambda: {each.session for each in page.in_flight()} >= users, "programs in flight")
    hold.unlink()
    page.close()
    until(lambda: host.device["pid"] not in (None, pid) and host.state() == "ready", "another one")
    return [notebook.end(cell) for (notebook, _), cell in zip(cells, begun, strict=True)]


def test_of_several_in_flight_each_is_tried_alone_and_the_one_that_did_it_is_refused(host, hold):
    bad, good, rests = (host.notebook(user=f"user{k}") for k in (1, 2, 3))
    for notebook in (bad, good, rests):
        assert notebook.ok(MAKE) == "4.0"

    for said in together(host, hold, (bad, KILLER), (good, SOUND)):
        assert said.error == "DeviceLost"
        assert "one of 2 that ran at that moment" in said.sentence
        assert "it runs while nothing else does: then it is certain" in said.sentence
    said = rests.run("print(x.sum().item())")
    assert said.error == "DeviceLost"
    assert "it was not this notebook's fault" in said.sentence
    assert host.device["last_end"]["culprit"] is None

    # The one that is sound goes through, alone, and is cleared.
    for notebook in (bad, good, rests):
        assert notebook.ok(MAKE) == "4.0"
    pid = host.device["pid"]
    assert good.ok(SOUND) == "begun\nTrue"
    assert host.device["pid"] == pid

    # The other breaks the device again, and is known: with its op and line.
    said = bad.run(KILLER)
    assert said.error == "DeviceLost"
    assert "aten::xlogy.Tensor of this notebook ended the shared device" in said.sentence
    assert "Nothing else ran then" in said.sentence
    assert "y = torch.xlogy(y, x)" in said.sentence
    until(lambda: host.device["pid"] not in (None, pid) and host.state() == "ready", "another one")
    culprit = host.device["last_end"]["culprit"]
    assert (culprit["user"], culprit["op"]) == ("user1", "aten::xlogy.Tensor")
    for notebook in (good, rests):
        said = notebook.run("print(x.sum().item())")
        assert "another user's program; it was not this notebook's fault" in said.sentence

    # It is refused from then on, to this user; nobody innocent is.
    pid = host.device["pid"]
    for notebook in (bad, good, rests):
        assert notebook.ok(MAKE) == "4.0"
    said = bad.run(KILLER)
    assert said.error == "ProgramRefused"
    assert "while nothing else ran there (xlogy.Tensor;" in said.sentence
    assert {notebook.ok(SOUND) for notebook in (bad, good, rests)} == {"begun\nTrue"}
    assert (host.device["pid"], host.device["restarts"]) == (pid, 2)
