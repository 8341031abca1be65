"""Kernels and servers that end in every way: what they held is free, nobody else notices."""

import os
import signal
import subprocess
import sys
import time

import processes
import pytest
from host import until

pytestmark = pytest.mark.e2e

HOLD = "import torch; held = torch.ones(1 << 20, device='cuda'); print(held.sum().item())"
TRAIN = "print('begun', flush=True)\nwhile True: held.mul_(1.0).sum().item()"
WORKERS = """
import torch
from torch.utils.data import DataLoader, Dataset
class Numbers(Dataset):
    def __len__(self): return 1 << 30
    def __getitem__(self, i): return float(i)
loader = iter(DataLoader(Numbers(), batch_size=4, num_workers=2, pin_memory=True))
print(held.sum().item() + next(loader).cuda().sum().item())
"""
SERVER = """
import os, sys
from jupyter_client.kernelspec import KernelSpecManager
from jupyter_client.manager import KernelManager
manager = KernelManager(
    kernel_name="jgpu", kernel_spec_manager=KernelSpecManager(kernel_dirs=[sys.argv[1]])
)
manager.start_kernel()
client = manager.client()
client.start_channels()
client.wait_for_ready(timeout=40)
client.execute_interactive(sys.argv[2], timeout=40)
print("ready", flush=True)
input()
"""


def used(host):
    return host.device["used_bytes"]


def assert_gone_within(host, kernel_id, seconds, before):
    """The session has ended, and the device holds no more than before, within some seconds."""
    started = time.monotonic()
    until(lambda: kernel_id not in host.sessions, "the session's end", seconds)
    until(lambda: used(host) <= before, "free memory", seconds)
    assert time.monotonic() - started < seconds


def test_memory_of_a_kernel_killed_in_mid_cell_is_free_within_a_second(host):
    other = host.notebook(user="user2")
    other.ok(HOLD)
    before = used(host)  # without the sums that the neighbour makes and drops
    neighbour = other.begin(
        "print('begun', flush=True)\nfor _ in range(300): held.mul_(1.0).sum().item()\n"
        "print(held.sum().item())"
    )
    notebook = host.notebook()
    notebook.ok(HOLD)
    assert used(host) >= before + (4 << 20)
    notebook.begin(TRAIN)
    os.kill(notebook.pid, signal.SIGKILL)
    assert_gone_within(host, notebook.id, 1.0, before + (1 << 20))
    said = other.end(neighbour)
    assert (said.error, said.stdout.strip()) == ("", "1048576.0")


def test_memory_is_free_within_a_second_though_forked_workers_hold_the_socket(host):
    notebook = host.notebook()
    notebook.ok(HOLD)
    assert notebook.ok(WORKERS) == "1048582.0"
    pid = notebook.pid
    os.kill(pid, signal.SIGKILL)
    assert_gone_within(host, notebook.id, 1.0, 0)


def test_a_killed_servers_kernel_is_gone_within_two_and_a_half_seconds(host):
    spec = host.notebook(path="spec.ipynb").manager.kernel_spec.resource_dir
    command = [sys.executable, "-c", SERVER, os.path.dirname(spec), f"{HOLD}\n"]
    server = processes.start(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=host.environ, text=True
    )
    with server:
        while (line := server.line()) != "ready\n":
            assert line
        (kernel,) = host.sessions
        server.kill()
        assert_gone_within(host, kernel, 2.5, 0)


def test_a_restart_drops_the_tensors_and_keeps_the_seat(host):
    notebook = host.notebook()
    notebook.ok(HOLD)
    ticket = "import os; print(os.environ['JGPU_TICKET'])"
    before = notebook.ok(ticket)
    notebook.manager.restart_kernel()
    assert_gone_within(host, notebook.id, 1.0, 0)
    notebook.connect()
    assert notebook.ok(ticket) == before
    assert notebook.run("held").error == "NameError"
    assert notebook.ok(HOLD) == "1048576.0"
    assert list(host.sessions) == [notebook.id]


def test_two_notebooks_of_one_name_are_two_sessions(host):
    first, second = host.notebook("a.ipynb"), host.notebook("a.ipynb")
    first.ok(HOLD)
    second.ok(HOLD + "; held.zero_()")
    assert first.ok("print(held.sum().item())") == "1048576.0"
    assert second.ok("print(held.sum().item())") == "0.0"
    rows = host.sessions
    assert set(rows) == {first.id, second.id}
    assert {row["label"] for row in rows.values()} == {"a.ipynb"}
    second.close()
    until(lambda: set(host.sessions) == {first.id}, "the second session's end", 2.5)
    assert first.ok("print(held.sum().item())") == "1048576.0"


def test_a_subprocess_of_a_kernel_gets_a_session_of_its_own(host):
    notebook = host.notebook()
    notebook.ok(HOLD)
    child = (
        "import torch; x = torch.full((4,), 2.0).cuda(); print(x.sum().item(), flush=True); input()"
    )
    started = notebook.ok(
        "import subprocess, sys\n"
        f"child = subprocess.Popen([sys.executable, '-c', {child!r}], text=True,\n"
        "    stdin=subprocess.PIPE, stdout=subprocess.PIPE)\n"
        "print(child.stdout.readline())"
    )
    assert started == "8.0"
    pids = {row["pid"] for row in host.status()["sessions"]}
    assert pids == {notebook.pid, int(notebook.ok("print(child.pid)"))}
    notebook.ok("child.communicate('')")
    until(lambda: len(host.status()["sessions"]) == 1, "the child's end", 2.5)
    assert notebook.ok("print(held.sum().item())") == "1048576.0"


def test_a_forked_child_that_touches_the_device_gets_torchs_own_error(host):
    notebook = host.notebook()
    notebook.ok(HOLD)
    said = notebook.ok(
        "import multiprocessing, os\n"
        "def child(pipe):\n"
        "    try:\n"
        "        held.sum().item()\n"
        "    except RuntimeError as error:\n"
        "        pipe.send(str(error))\n"
        "here, there = multiprocessing.Pipe()\n"
        "process = multiprocessing.get_context('fork').Process(target=child, args=(there,))\n"
        "process.start(); print(here.recv()); process.join(); print(process.exitcode)"
    )
    assert "Cannot re-initialize CUDA in forked subprocess" in said
    assert said.endswith("\n0")
    assert notebook.ok("print(held.sum().item())") == "1048576.0"
