"""A program that ends the device: its notebook is told, the others are told that it was not theirs.

The fault is a signal of the kernel's to the thread that computes, as a division by zero is one: no
op is known that ends its process and may still be sent.
"""

import contextlib
import ctypes
import signal

import pytest
from host import Host, until

from jgpu.broker.flightpage import State

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(300)]

MAKE = "import torch; weights = torch.ones(1000, device='cuda'); print(weights.sum().item())"
KILLER = """
print('begun', flush=True)
with torch.no_grad():
    x = torch.rand(2500, 2500, device='cuda')
    for _ in range(4):
        x = x @ x * 1e-3
print(x.sum().isfinite().item())
"""


def crash(host, notebook, code=KILLER):
    """Run a cell and have its matrix product end the executor; what the notebook is told."""
    pid, session = host.device["pid"], host.sessions[notebook.id]["id"]
    page = host.flight_page()
    cell = notebook.begin(code)

    def at_it():
        for entry in page.entries():
            if (entry.session, entry.state) == (session, State.WORKS) and "mm" in entry.name:
                return entry
        return None

    entry = until(at_it, "the product")
    assert entry.native_id != pid, "it runs in a lane"
    assert ctypes.CDLL(None).tgkill(pid, entry.native_id, signal.SIGFPE) == 0
    said = notebook.end(cell)
    page.close()
    return said


@pytest.fixture
def host(tmp_path):
    with contextlib.closing(Host(tmp_path, "cpu", "--Broker.crash_limit=1")) as made:
        yield made.start()


def test_who_ended_the_device_is_told_and_refused_and_nobody_else(host):
    own, other, third = (host.notebook(user=f"user{k}") for k in (1, 2, 3))
    for notebook in (own, other, third):
        assert notebook.ok(MAKE) == "1000.0"

    said = crash(host, own)
    assert said.error == "DeviceLost"
    assert "aten::mm of this notebook ended the shared device" in said.sentence
    assert "SIGFPE" in said.sentence
    assert "x = x @ x * 1e-3" in said.sentence
    for notebook in (other, third):
        said = notebook.run("print(weights.sum().item())")
        assert said.error == "DeviceLost"
        assert "another user's program; it was not this notebook's fault" in said.sentence
        assert "user1" not in said.sentence
        assert notebook.ok(MAKE) == "1000.0"
    end = host.device["last_end"]
    assert end["how"] == "was ended by signal 8 (SIGFPE)"
    assert (end["culprit"]["user"], end["culprit"]["op"]) == ("user1", "aten::mm")
    log = (host.directory / "broker.log").read_text()
    assert "It was aten::mm (op" in log
    assert "(user1)" in log

    # The same again: now the program is known, and refused to this user, and to no other.
    assert own.ok(MAKE) == "1000.0"
    assert crash(host, own).error == "DeviceLost"
    assert own.ok(MAKE) == "1000.0"
    pid = host.device["pid"]
    said = own.run(KILLER)
    assert said.error == "ProgramRefused"
    assert "ended the shared device twice" in said.sentence
    assert "x = x @ x * 1e-3" in said.sentence
    assert own.ok("print(weights.sum().item())") == "1000.0"
    assert other.ok(MAKE) == "1000.0"
    assert other.ok(KILLER) == "begun\nTrue"
    assert host.device["pid"] == pid

    # Under another user, too: now it is refused to everybody.
    assert crash(host, other).error == "DeviceLost"
    assert third.run("print(weights.sum().item())").error == "DeviceLost"
    assert third.ok(MAKE) == "1000.0"
    said = third.run(KILLER)
    assert said.error == "ProgramRefused"
    assert "under two users" in said.sentence
    assert third.ok(MAKE) == "1000.0"
    assert (host.device["state"], host.device["restarts"]) == ("ready", 3)
