"""Real kernels through the kernelspec; the broker is the fake at the seam."""

import asyncio
import json
import os
import signal
import sys
import sysconfig
import time
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import ANY

import processes
import pytest
from jupyter_client.ioloop import AsyncIOLoopKernelManager
from jupyter_client.kernelspec import KernelSpecManager
from jupyter_client.manager import AsyncKernelManager, KernelManager
from jupyter_client.provisioning.factory import KernelProvisionerFactory

from jgpu.kernelprovider.environment import HIDDEN
from jgpu.kernelprovider.kernelspec import Place, install
from jgpu.kernelprovider.provisioner import SharedGpuProvisioner
from jgpu.wire.limits import PROTOCOL
from jgpu.wire.messages import LeaveSeat, Refused, TakeSeat

pytestmark = pytest.mark.e2e


@pytest.fixture
def kernel_name():
    """The spec, installed for the test's own user."""
    return install(Place()).name


@contextmanager
def kernel(name="jgpu", traits=None, **options):
    """A running kernel's manager and client."""
    manager = KernelManager(kernel_name=name, **(traits or {}))
    manager.start_kernel(**options)
    try:
        client = manager.client()
        client.start_channels()
        try:
            client.wait_for_ready(timeout=50)
            yield manager, client
        finally:
            client.stop_channels()
    finally:
        manager.shutdown_kernel(now=True)


def run(client, code):
    """What a cell prints, per stream, and the names of its errors."""
    said = {"stdout": "", "stderr": "", "error": ""}

    def hook(message):
        content = message["content"]
        if message["msg_type"] == "stream":
            said[content["name"]] += content["text"]
        elif message["msg_type"] == "error":
            said["error"] = content["ename"]

    client.execute_interactive(code, timeout=50, output_hook=hook, stop_on_error=False)
    return said


def environment_of(client):
    return json.loads(run(client, "import json, os; print(json.dumps(dict(os.environ)))")["stdout"])


def test_a_kernel_has_a_ticket_and_sees_no_gpu(control, kernel_name, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    environ = {**os.environ, "JPY_SESSION_NAME": "/home/user1/a.ipynb", "JGPU_USER": "user1"}
    with kernel(kernel_name, env=environ) as (manager, client):
        inside = environment_of(client)
        assert inside["JGPU_TICKET"] == "ticket-1"
        assert inside["JGPU_ADDRESS"] == control.address
        assert inside["JGPU_LABEL"] == "/home/user1/a.ipynb"
        assert inside["JGPU_KERNEL_ID"] == manager.kernel_id
        assert {name: inside[name] for name in HIDDEN} == HIDDEN
        assert "PYTHONSTARTUP" not in inside
        assert "JGPU_PROBLEM" not in inside
        assert control.requests == [
            TakeSeat(PROTOCOL, manager.kernel_id, "/home/user1/a.ipynb", "user1"),
        ]
    assert control.requests[1:] == [LeaveSeat("ticket-1", restart=False)]


def test_a_plain_kernel_says_nothing_and_leaves_no_name_behind(control, kernel_name):
    with kernel(kernel_name) as (_, client):
        said = run(client, "print([n for n in dir() if 'jgpu' in n], __doc__ is not None)")
        assert said == {"stdout": "[] True\n", "stderr": "", "error": ""}


def test_a_restart_keeps_the_seat_and_an_end_gives_it_up(control, kernel_name):
    with kernel(kernel_name) as (manager, client):
        for now in (False, True):
            manager.restart_kernel(now=now)
            client.wait_for_ready(timeout=50)
            assert environment_of(client)["JGPU_TICKET"] == "ticket-1"
    assert [r for r in control.requests if isinstance(r, LeaveSeat)] == [
        LeaveSeat("ticket-1", restart=True),
        LeaveSeat("ticket-1", restart=True),
        LeaveSeat("ticket-1", restart=False),
    ]
    assert sum(isinstance(r, TakeSeat) for r in control.requests) == 1


def test_a_killed_kernel_is_restarted_on_its_seat(control, kernel_name):
    """As a server's restarter does it: found dead, killed again, cleaned up, launched."""
    with kernel(kernel_name) as (manager, client):
        os.kill(manager.provisioner.pid, signal.SIGKILL)
        deadline = time.monotonic() + 20
        while manager.is_alive():
            assert time.monotonic() < deadline
        manager.restart_kernel(now=True, newports=False)
        client.wait_for_ready(timeout=50)
        assert environment_of(client)["JGPU_TICKET"] == "ticket-1"


def test_the_servers_own_restarter_keeps_the_seat(control, kernel_name):
    async def killed_and_restarted():
        manager = AsyncIOLoopKernelManager(kernel_name=kernel_name)
        restarted = asyncio.Event()
        await manager.start_kernel()
        try:
            manager._restarter.stop()
            manager._restarter.time_to_dead = 0.1
            manager._restarter.start()
            manager.add_restart_callback(restarted.set, "restart")
            killed = manager.provisioner.pid
            os.kill(killed, signal.SIGKILL)
            await asyncio.wait_for(restarted.wait(), 30)
            for _ in range(3000):
                if manager.provisioner.pid != killed and manager.ready.done():
                    break
                await asyncio.sleep(0.01)
        finally:
            await manager.shutdown_kernel(now=True)

    asyncio.run(killed_and_restarted())
    assert control.requests == [
        TakeSeat(PROTOCOL, ANY, ANY),
        LeaveSeat("ticket-1", restart=True),
        LeaveSeat("ticket-1", restart=False),
    ]


def test_a_kernel_may_be_required_to_encrypt(control, kernel_name):
    with kernel(kernel_name, {"transport_encryption": "required"}) as (manager, client):
        assert run(client, "print(1)")["stdout"] == "1\n"
        assert manager.curve_publickey


def test_a_broker_that_came_back_without_the_seat_gives_a_new_one(control, kernel_name):
    with kernel(kernel_name) as (manager, client):
        control.refusal = Refused("refused", "Who are you?")
        restarted = asyncio.run(manager.provisioner.cleanup(restart=True))
        assert restarted is None
        assert manager.provisioner.seat is None
        control.refusal = None
        manager.restart_kernel(now=True)
        client.wait_for_ready(timeout=50)
        assert environment_of(client)["JGPU_TICKET"] == "ticket-2"


@pytest.mark.parametrize("fault", ["refused", "gone", "garbage", "address"])
def test_a_kernel_without_a_seat_starts_and_knows_why(control, kernel_name, fault, monkeypatch):
    sentences = {
        "refused": "Not on Sundays.",
        "gone": "has ended",
        "garbage": "does not speak jgpu",
        "address": "it has to read unix:/path",
    }
    if fault == "refused":
        control.refusal = Refused("refused", "Not on Sundays.")
    elif fault == "gone":
        control.stop()
    elif fault == "garbage":
        control.garbage = b"HTTP/1.1 400 Bad Request"
    else:
        monkeypatch.setenv("JGPU_ADDRESS", "tcp://elsewhere")
    with kernel(kernel_name) as (_, client):
        inside = environment_of(client)
        assert inside["JGPU_TICKET"] == "none"
        assert sentences[fault] in inside["JGPU_PROBLEM"]
        assert inside["CUDA_VISIBLE_DEVICES"] == ""
        assert run(client, "print(1 + 1)")["stdout"] == "2\n"


def test_the_first_kernel_of_a_user_starts_the_private_broker(private_python, kernel_name):
    async def both():
        managers = [AsyncKernelManager(kernel_name=kernel_name) for _ in range(2)]
        try:
            await asyncio.gather(*(manager.start_kernel() for manager in managers))
            return {manager.provisioner.seat.ticket for manager in managers}
        finally:
            await asyncio.gather(*(manager.shutdown_kernel(now=True) for manager in managers))

    assert asyncio.run(both()) == {"ticket-1", "ticket-2"}
    assert len(private_python.read_text().split()) == 1


def test_the_users_startup_file_is_run_and_seen(control, kernel_name, tmp_path, monkeypatch):
    startup = tmp_path / "mine.py"
    startup.write_text("import os\nmine = os.environ['PYTHONSTARTUP']\n")
    monkeypatch.setenv("PYTHONSTARTUP", str(startup))
    with kernel(kernel_name) as (_, client):
        assert run(client, "print(mine)") == {"stdout": f"{startup}\n", "stderr": "", "error": ""}


@pytest.fixture
def bare_environment(tmp_path):
    """A virtual environment with everything that is installed here, jgpu excepted."""
    prefix = tmp_path / "bare"
    processes.run([sys.executable, "-m", "venv", "--without-pip", prefix], check=True)
    here = Path(sysconfig.get_paths()["purelib"])
    site = Path(sysconfig.get_path("purelib", vars={"base": str(prefix)}))
    for entry in here.iterdir():
        if not entry.name.lower().lstrip("_").startswith(("jgpu", "editable_impl_jgpu")):
            (site / entry.name).symlink_to(entry)
    return prefix


def test_a_kernel_whose_environment_lacks_the_client_says_so_once(control, bare_environment):
    python = bare_environment / "bin" / "python"
    install(Place(), python=str(python), name="bare")
    with kernel("bare") as (_, client):
        said = run(client, "print(1)")
        assert said["stdout"] == "1\n"
        assert "lacks the package jgpu" in said["stderr"]
        assert f"jgpu kernelspec install --python {python}" in said["stderr"]
        assert run(client, "print(2)") == {"stdout": "2\n", "stderr": "", "error": ""}
        assert run(client, "%jgpu release")["stdout"] == said["stderr"]


def test_every_kernel_is_routed_by_the_default_provisioner(control, monkeypatch, tmp_path):
    monkeypatch.setenv("JUPYTER_DEFAULT_PROVISIONER_NAME", "jgpu-provisioner")
    KernelProvisionerFactory.clear_instance()
    try:
        with kernel("python3") as (manager, client):
            assert isinstance(manager.provisioner, SharedGpuProvisioner)
            assert environment_of(client)["JGPU_TICKET"] == "ticket-1"
    finally:
        KernelProvisionerFactory.clear_instance()


def test_a_kernel_of_another_language_gets_a_seat_and_no_startup_file(control, monkeypatch):
    async def environment():
        spec = KernelSpecManager().kernel_spec_class(argv=["julia"], language="julia")
        provisioner = SharedGpuProvisioner(kernel_id="k", kernel_spec=spec)
        return (await provisioner.pre_launch(env={"PATH": "/bin", **os.environ}))["env"]

    monkeypatch.delenv("PYTHONSTARTUP", raising=False)
    environ = asyncio.run(environment())
    assert environ["JGPU_TICKET"] == "ticket-1"
    assert environ["CUDA_VISIBLE_DEVICES"] == ""
    assert "PYTHONSTARTUP" not in environ


def test_a_persistent_application_takes_kernel_and_seat_over(control):
    async def handed_over():
        spec = KernelSpecManager().get_kernel_spec("python3")
        first = SharedGpuProvisioner(kernel_id="k", kernel_spec=spec)
        await first.pre_launch(env=dict(os.environ))
        second = SharedGpuProvisioner(kernel_id="k", kernel_spec=spec)
        await second.load_provisioner_info(await first.get_provisioner_info())
        await second.cleanup(restart=False)
        await second.cleanup(restart=False)

    asyncio.run(handed_over())
    assert control.requests[1:] == [LeaveSeat("ticket-1", restart=False)]


def test_a_manager_that_ends_its_kernel_with_the_interpreter_gives_the_seat_up(
    control, kernel_name
):
    code = (
        "import atexit, subprocess\n"
        "from jupyter_client.manager import KernelManager\n"
        f"manager = KernelManager(kernel_name={kernel_name!r})\n"
        # What the kernel itself says where it is interrupted as it begins is not the manager's.
        "manager.start_kernel(stderr=subprocess.DEVNULL)\n"
        "atexit.register(manager.shutdown_kernel, now=True)\n"
    )
    ended = processes.run([sys.executable, "-c", code], capture_output=True, check=True)
    assert ended.stderr == b""
    assert control.requests[1:] == [LeaveSeat("ticket-1", restart=False)]
