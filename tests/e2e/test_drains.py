"""A drain with a real broker and executor: a training waits, and goes on as if nothing had been."""

import contextlib

import pytest
from host import Host, until

from jgpu.wire.asking import ask
from jgpu.wire.messages import Drain
from jgpu.wire.reports.watching import watch

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

#: Trains as often as it is told to, and prints what came of it.
PROGRAM = """
import sys, torch
torch.manual_seed(0)
model = torch.nn.Linear(64, 64).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
x = torch.randn(128, 64).cuda()
torch.cuda.synchronize()  # until then small uploads wait for the run that uses them
print("ready", flush=True)
for line in sys.stdin:
    for _ in range(int(line)):
        optimizer.zero_grad()
        (model(x) - x).square().mean().backward()
        optimizer.step()
    print(model.weight.detach().cpu().double().sum().item(), flush=True)
"""


@pytest.fixture
def host(tmp_path):
    with contextlib.closing(Host(tmp_path, "cpu")) as made:
        yield made.start()


def trained(program, steps):
    program.stdin.write(f"{steps}\n")
    program.stdin.flush()


def test_a_training_waits_while_the_device_is_drained_and_gives_the_same_numbers(host):
    one, other = (host.program(PROGRAM, user) for user in ("user1", "user2"))
    for program in (one, other):
        assert program.line() == "ready\n"
    trained(other, 30)
    expected = other.line()
    trained(one, 30)
    ask(host.address, Drain())
    for report in watch(host.address, every_s=30.0):
        if report.broker.drain == "drained":
            break
    assert "2 sessions keep" in report.broker.drain_text
    trained(other, 1)

    def waits():
        return "waiting" in [row["state"] for row in host.status()["sessions"]]

    until(waits, "a cell that waits")
    ask(host.address, Drain(on=False))
    assert one.line() == expected
    other.line()
