"""An op that does not end and that no guard knows: neighbours go on, and train to the same bits."""

import contextlib
import os
import re
import signal
import sys
from pathlib import Path

import processes
import pytest
from host import Host, until

SCRIPT = Path(__file__).parents[1] / "broker" / "executor" / "endless_executor.py"

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(600)]

#: trains a stage for each line that it reads, and prints its losses and the longest step
TRAINER = """
import sys, time, torch
device = sys.argv[1] if len(sys.argv) > 1 else "cuda"
torch.set_num_threads(1)
torch.manual_seed(7)
model = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.Tanh(), torch.nn.Linear(64, 8))
x, y = torch.randn(128, 32), torch.randn(128, 8)
model, x, y = model.to(device), x.to(device), y.to(device)
optimizer = torch.optim.Adam(model.parameters())
for line in sys.stdin:
    losses, longest = [], 0.0
    for step in range(30):
        began = time.monotonic()
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item().hex())
        longest = max(longest, time.monotonic() - began)
    print(*losses, f"{longest:.3f}", flush=True)
"""
ENDLESS = """
import torch
x = torch.ones(SIZE, device="cuda")
print((x + 1).sum().item(), flush=True)
torch.special.bessel_j0(x).cpu()
"""
#: needs much memory; says what happened, and does it again
LARGE = """
import sys, torch
torch.ones(4, device="cuda").sum().item()
print("here", flush=True)
for line in sys.stdin:
    try:
        print(torch.ones(SIZE, device="cuda").sum().item(), flush=True)
    except Exception as error:
        print(type(error).__name__, str(error).replace(chr(10), " "), flush=True)
"""
STAGES = 4


@pytest.fixture(scope="module")
def host(tmp_path_factory):
    """A broker of short patience whose executor knows an endless op."""
    directory = tmp_path_factory.mktemp("endless")
    fifo, file = directory / "fifo", directory / "config.py"
    os.mkfifo(fifo)
    command = [sys.executable, "-P", str(SCRIPT), str(fifo)]
    file.write_text(f"c.JgpuBroker.executor_command = {command!r}\n")
    options = ["--lanes", "2", "--memory", "96M", "--config", str(file)]
    options += ["--JgpuBroker.op_grace=2", "--JgpuBroker.stopped_limit=3"]
    made = Host(directory, "cpu", *options)
    made.fifo = fifo
    made.start()
    yield made
    made.close()


@pytest.fixture(scope="module")
def expected():
    """The losses of each stage, natively."""
    command = [sys.executable, "-c", TRAINER, "cpu"]
    done = processes.run(command, input="go\n" * STAGES, capture_output=True, text=True, check=True)
    return [line.split()[:-1] for line in done.stdout.splitlines()]


class Trainers:
    """Three users who train, stage by stage."""

    def __init__(self, host, expected):
        self._programs = [host.program(TRAINER, user=f"user{k}") for k in (1, 2, 3)]
        self._expected = iter(expected)

    def stage(self, when):
        """Train a stage side by side; the losses are those that there are natively."""
        expected, waits = next(self._expected), []
        for program in self._programs:
            program.stdin.write("go\n")
            program.stdin.flush()
        for program in self._programs:
            *losses, longest = program.line().split()
            assert losses == expected
            waits.append(float(longest))
        text = ", ".join(f"{seconds:.3f}" for seconds in waits)
        sys.stdout.write(f"{when}: the longest steps took {text} s\n")


def begin_endless(host, user, size=1000):
    """Start a user's program and wait until it is at its endless op."""
    begun = host.fifo.with_suffix(".begun")
    before = begun.stat().st_size if begun.exists() else 0
    program = host.program(ENDLESS.replace("SIZE", str(size)), user=user)
    program.line()
    until(lambda: begun.exists() and begun.stat().st_size > before, "the endless op")


def states(host):
    """How many lanes are in each state, without those that rest."""
    return [lane["state"] for lane in host.device["lanes"]]


def end_ops(host):
    """Let the endless ops end."""

    def over():
        with contextlib.suppress(OSError):
            os.close(os.open(host.fifo, os.O_WRONLY | os.O_NONBLOCK))
        return "retired" not in states(host)

    until(over, "the ends of retired lanes")


def kill(host, *users):
    """End the programs of these users at once."""
    for row in host.status()["sessions"]:
        if row["user"] in users:
            os.kill(row["pid"], signal.SIGKILL)


def test_neighbours_train_on_before_and_after_the_lane_is_retired(host, expected):
    trainers = Trainers(host, expected)
    trainers.stage("alone")
    begin_endless(host, "user4")
    trainers.stage("beside an endless op")
    (lane,) = [each for each in host.device["lanes"] if "bessel_j0" in each["op"]]
    assert lane["running_seconds"] > 0
    kill(host, "user4")
    trainers.stage("while it outlives its session")
    until(lambda: "retired" in states(host), "the lane's retirement")
    trainers.stage("after its lane was retired")
    assert host.device["restarts"] == 0
    end_ops(host)
    host.leave()


def test_two_take_both_lanes_and_die_and_others_get_new_ones(host, expected):
    trainers = Trainers(host, expected)
    trainers.stage("alone")
    for user in ("user4", "user5"):
        begin_endless(host, user)
    kill(host, "user4", "user5")
    trainers.stage("with both lanes lost")
    assert states(host).count("retired") == 2
    trainers.stage("in new lanes")
    assert host.device["restarts"] == 0
    end_ops(host)
    host.leave()


def test_memory_that_an_endless_op_keeps_from_all_costs_the_executor_and_others_are_told(host):
    other = host.program(LARGE.replace("SIZE", "16_000_000"), user="user1")
    assert other.line() == "here\n"
    for user in ("user4", "user5"):
        begin_endless(host, user, 4_500_000)
    kill(host, "user4", "user5")
    other.stdin.write("go\n")
    other.stdin.flush()
    said = other.line()
    assert "another user's program; it was not this notebook's fault" in said or (
        "Nothing of this notebook ran at that moment" in said
    )
    other.stdin.write("go\n")
    other.stdin.flush()
    assert other.line() == "16000000.0\n"
    host.leave()


def test_a_stopped_executor_is_told_of_and_ended_after_its_patience(host):
    other = host.program(LARGE.replace("SIZE", "16"), user="user1")
    assert other.line() == "here\n"
    pid = host.device["pid"]
    os.kill(pid, signal.SIGSTOP)
    row = until(lambda: (row := host.device)["state"] == "silent" and row, "a silent device")
    assert re.fullmatch(r"Stopped for \d+ s, by a debugger or SIGSTOP\.", row["note"])
    os.kill(pid, signal.SIGCONT)
    until(lambda: host.device["state"] == "ready", "an executor that goes on")
    assert host.device["pid"] == pid
    os.kill(pid, signal.SIGSTOP)
    until(lambda: host.device["pid"] not in (pid, None), "another executor")
    other.stdin.write("go\n")
    other.stdin.flush()
    assert "it was not this notebook's fault" in other.line()
    other.stdin.write("go\n")
    other.stdin.flush()
    assert other.line() == "16.0\n"
    host.leave()
