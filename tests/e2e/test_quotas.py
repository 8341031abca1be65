"""Budgets with a real broker and executor: used up, told, refused, saved, and there next day."""

import contextlib
import json
import sys

import processes
import pytest
from host import Host, until

from jgpu.wire.asking import ask
from jgpu.wire.messages import AskQuotas, SetQuota

pytestmark = pytest.mark.e2e

#: Trains until it is told to stop, or until something is raised, which it prints.
PROGRAM = """
import sys, torch
torch.manual_seed(0)
model = torch.nn.Linear(256, 256).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
x = torch.randn(2048, 256).cuda()
print("ready", flush=True)
for line in sys.stdin:
    words, steps = line.split(), 0
    if words == ["end"]:
        break
    try:
        if words[0] == "train":
            for steps in range(int(words[1])):
                optimizer.zero_grad()
                loss = (model(x) - x).square().mean()
                loss.backward()
                optimizer.step()
                loss.item()
            print("trained", flush=True)
        elif words[0] == "save":
            weights = model.weight.detach().cpu()
            print("finite", bool(torch.isfinite(weights).all()), flush=True)
    except Exception as error:
        print(type(error).__name__, steps, str(error).replace(chr(10), " "), flush=True)
"""


@pytest.fixture
def host(tmp_path):
    """A host that counts often and keeps its ledger from one broker to the next."""
    options = ("--JgpuBroker.usage_interval=0.2",)
    with contextlib.closing(Host(tmp_path, "cpu", *options)) as made:
        yield made.start()


def started(host, user="user1"):
    program = host.program(PROGRAM, user)
    assert program.line() == "ready\n"
    return program


def say(program, words):
    program.stdin.write(words + "\n")
    program.stdin.flush()
    return program.line().strip()


def set_quota(host, scope, **settings):
    ask(host.address, SetQuota(scope, tuple(settings.items()), True), 30.0)


def usage(host, user="user1"):
    """What `jgpu quota usage` says of a user, and the status at the same time."""
    done = processes.run(
        [sys.executable, "-m", "jgpu", "quota", "usage", user, "--json"],
        capture_output=True, text=True, check=True, env=host.environ,
    )  # fmt: skip
    (row,) = json.loads(done.stdout)["users"]
    return row


def charged(host, user="user1"):
    (row,) = (row for row in host.status()["users"] if row["name"] == user)
    return row["device_seconds"]


def test_a_budget_that_is_used_up_refuses_work_by_whole_iterations_and_survives_a_restart(host):
    program, neighbour = started(host), started(host, "user2")
    assert say(program, "train 3") == "trained"
    used = usage(host)["used_in_period"]
    set_quota(
        host, "user:user1", device_seconds=f"{used + 0.3:.6f}", period="1h", over_budget="deny"
    )
    said = say(program, "train 100000")
    assert said.startswith("BudgetExceeded ")
    assert "user1 has used " in said
    assert "device-seconds that may be used in any 1h. New work is refused" in said
    assert say(program, "train 10").startswith("BudgetExceeded 0 ")
    assert say(neighbour, "train 3") == "trained"
    assert say(program, "save") == "finite True"

    until(lambda: usage(host)["used_in_period"] == pytest.approx(charged(host)), "one figure")
    row = usage(host)
    assert row["state"] == "denied"
    assert used + 0.3 <= row["used_in_period"] < used + 3.0
    assert say(program, "end") == ""
    until(lambda: len(host.status()["sessions"]) == 1, "the session's end")
    total = usage(host)["used_in_period"]
    assert total == pytest.approx(charged(host))

    host.close()
    host.start()
    row = usage(host)
    assert row["used_in_period"] == pytest.approx(total)
    assert row["state"] == "denied"
    again = started(host)
    assert say(again, "train 10").startswith("BudgetExceeded 0 ")
    set_quota(host, "user:user1", device_seconds="")
    until(lambda: usage(host)["state"] == "within", "another standing")
    assert say(again, "train 3") == "trained"


def test_a_notebook_is_told_once_in_its_cell_that_the_budget_is_used_up(host):
    notebook = host.notebook()
    notebook.ok("import torch; a = torch.randn(256, 256).cuda(); print(a.sum().item())")
    set_quota(host, "default", device_seconds="0.000001", over_budget="warn")
    until(lambda: usage(host)["state"] == "warned", "a warning")
    said = notebook.run("print((a @ a).sum().item())")
    assert not said.error
    assert "jgpu: user1 has used " in said.stderr
    assert "Notebooks go on as before" in said.stderr
    assert not notebook.run("print((a @ a).sum().item())").stderr
    set_quota(host, "default", over_budget="deny")
    until(lambda: usage(host)["state"] == "denied", "a refusal")
    said = notebook.run("print((a @ a).sum().item())")
    assert said.error == "BudgetExceeded"
    assert len(said.shown.splitlines()) == 1
    assert "jgpu quota usage" in said.shown
    assert notebook.ok("print(a.cpu().shape)") == "torch.Size([256, 256])"
    set_quota(host, "default", over_budget="throttle")
    until(lambda: usage(host)["state"] == "throttled", "less than that")
    said = notebook.run("print((a @ a).shape, (a @ a).sum().item() != 0)")
    assert not said.error, said.shown
    assert "only while nobody else needs the device" in said.stderr
    assert json.loads(ask(host.address, AskQuotas(), 30.0).json)["ledger"]["state"] == "working"


def test_below_a_lowered_limit_a_notebook_reads_and_writes_what_it_has(host):
    notebook = host.notebook()
    notebook.ok("import torch; x = torch.ones(1 << 20, device='cuda'); print(x[0].item())")
    more = "y = x * 2; y[0].item(); del y"
    done = processes.run(
        [sys.executable, "-m", "jgpu", "quota", "set", "user:user1", "memory=1M", "--new"],
        capture_output=True, text=True, check=True, env=host.environ | {"COLUMNS": "1000"},
    )  # fmt: skip
    assert "user1 holds 4 MiB, 3 MiB more than the 1 MiB" in done.stdout
    until(lambda: notebook.run(more).error == "DeviceOutOfMemory", "a limit that holds")
    assert notebook.ok("print(x.add_(1).cpu().sum().item())") == f"{2 << 20}.0"
    assert notebook.ok("print(x)").startswith("tensor([2., 2., 2.,")
    assert notebook.ok("print(x[::2].cpu().sum().item())") == f"{1 << 20}.0"
    # also where the executor is the first to see that there is no room for a copy
    unaware = "from jgpu.device.client.notebook import largest; largest._limit = 1 << 50; "
    assert notebook.ok(f"{unaware}print(x[1::2].cpu().sum().item())") == f"{1 << 20}.0"
    set_quota(host, "user:user1", memory="")
    until(lambda: not notebook.run(more).error, "a limit that is gone")
