"""What a session's class means with a real broker and executor: how much device time it gets."""

import contextlib

import pytest
from host import Host, until

pytestmark = pytest.mark.e2e

#: Trains until it is ended, many iterations ahead of the device.
TRAINS = """
import os, torch
x = torch.randn(256, 512).cuda()
model = torch.nn.Linear(512, 512).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
for step in range(1_000_000):
    optimizer.zero_grad()
    loss = (model(x) - x).square().mean()
    loss.backward()
    optimizer.step()
    if step % 50 == 0:
        loss.item()
        print(os.getpid(), flush=True)
"""
#: device time of the stretch that is looked at, in seconds
STRETCH_S = 2.0


@pytest.fixture
def host(tmp_path):
    with contextlib.closing(Host(tmp_path, "cpu", "--lanes", "1")) as made:
        yield made.start()


def seconds(host):
    """Device time charged to each session so far, by its process."""
    return {row["pid"]: row["device_seconds"] for row in host.status()["sessions"]}


def parts(host, *seats):
    """What each of these sessions has of the device time while all of them train."""
    programs = [host.program(TRAINS, user, JGPU_PRIORITY=name) for user, name in seats]
    for program in programs:  # each has learnt its iteration, and runs ahead of the device
        program.line()
        program.line()
    pids = {seat: int(program.line()) for seat, program in zip(seats, programs, strict=True)}
    before = seconds(host)

    def gained():
        after = seconds(host)
        return {seat: after[pid] - before[pid] for seat, pid in pids.items()}

    until(lambda: sum(gained().values()) >= STRETCH_S, "device time")
    found = gained()
    return {seat: found[seat] / sum(found.values()) for seat in seats}


def test_batch_work_has_a_fifth_beside_one_other_notebook_and_a_tenth_beside_ones_own(host):
    grading, training = ("user1", "batch"), ("user2", "normal")
    assert parts(host, grading, training)[grading] == pytest.approx(0.2, abs=0.05)
    host.leave()
    own = ("user1", "normal")
    found = parts(host, grading, own, training)
    assert found[training] == pytest.approx(0.5, abs=0.08)
    assert found[grading] == pytest.approx(0.1, abs=0.05)
