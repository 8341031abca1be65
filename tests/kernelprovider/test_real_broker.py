"""Real kernels, a real broker: seats and sessions come and go with their kernels."""

import os
import signal
import subprocess
import sys

import processes
import pytest
from real_broker import real_broker, status, until
from test_provisioner import kernel, run

from jgpu.kernelprovider.kernelspec import Place, install

pytestmark = pytest.mark.e2e

USE = "import torch; x = torch.ones(1000, device='cuda'); s = x.sum().item()"


@pytest.fixture
def broker(tmp_path, monkeypatch):
    with real_broker(tmp_path, "--device", "cpu", "--threads", "1") as address:
        monkeypatch.setenv("JGPU_ADDRESS", str(address))
        install(Place())
        yield address


def sessions(broker):
    return status(broker)["sessions"]


def test_a_session_has_its_kernels_id_and_label_and_goes_with_it(broker):
    environ = {**os.environ, "JPY_SESSION_NAME": "a.ipynb", "JGPU_USER": "user1"}
    with kernel("jgpu", env=environ) as (manager, client):
        assert run(client, "print(1)")["stdout"] == "1\n"
        assert sessions(broker) == []
        assert run(client, USE)["error"] == ""
        (session,) = sessions(broker)
        assert session["kernel_id"] == manager.kernel_id
        assert session["user"] == "user1"
        manager.restart_kernel(now=True)
        client.wait_for_ready(timeout=50)
        until(lambda: sessions(broker) == [], timeout_s=2.5)
        assert run(client, USE)["error"] == ""
        assert len(sessions(broker)) == 1
    until(lambda: sessions(broker) == [], timeout_s=2.5)


def test_a_killed_kernels_session_ends_within_a_second(broker):
    with kernel("jgpu") as (manager, client):
        assert run(client, USE)["error"] == ""
        os.kill(manager.provisioner.pid, signal.SIGKILL)
        until(lambda: sessions(broker) == [], timeout_s=1.0)


def test_a_killed_servers_kernels_are_gone_within_two_and_a_half_seconds(broker):
    code = (
        "from jupyter_client.manager import KernelManager\n"
        "manager = KernelManager(kernel_name='jgpu'); manager.start_kernel()\n"
        "client = manager.client(); client.start_channels(); client.wait_for_ready(50)\n"
        f"client.execute_interactive({USE!r}, timeout=50)\n"
        "print('ready', flush=True); input()\n"
    )
    server = processes.start(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    with server:
        assert server.line() == b"ready\n"
        assert len(sessions(broker)) == 1
        server.kill()
    until(lambda: sessions(broker) == [], timeout_s=2.5)


def test_a_kernel_without_a_seat_says_why_where_it_says_cuda(broker, tmp_path, monkeypatch):
    monkeypatch.setenv("JGPU_ADDRESS", f"unix:{tmp_path}/none")
    with kernel("jgpu") as (_, client):
        assert run(client, "import torch; print(torch.ones(2).sum())")["stdout"] == "tensor(2.)\n"
        said = run(client, "torch.ones(2).cuda()")
        assert said["error"] == "BrokerUnreachable"
        said = run(client, "%jgpu")
        assert said["error"] == ""
        assert said["stdout"].startswith("GPU: There is no broker at ")


def test_an_interrupt_of_an_idle_kernel_does_nothing(broker):
    with kernel("jgpu") as (manager, client):
        assert run(client, USE)["error"] == ""
        manager.interrupt_kernel()
        assert run(client, "print(s)")["stdout"] == "1000.0\n"
