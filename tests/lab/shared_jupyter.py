"""A real Jupyter server whose kernels all go to one real broker with one lane."""

import contextlib
import os
import signal
import sys

import processes
from jupyter_pages import Jupyter, playwright, until

from jgpu.errors import BrokerUnreachable
from jgpu.wire.address import Address
from jgpu.wire.asking import ask
from jgpu.wire.messages import AskStatus

__all__ = ["FIRST", "in_front", "kill", "row", "says", "shared_jupyter"]

#: A cell that keeps 4 MiB on the device.
FIRST = "import torch\nx = torch.ones(1 << 20, device='cuda')\nx.sum().item()"


@contextlib.contextmanager
def shared_jupyter(directory, python=None):
    """The server; its broker is at `broker`. `python`: of another environment, for both."""
    address = Address(directory / "broker.sock", "environment")
    command = [python or sys.executable, "-m", "jgpu", "broker", "--private", "--idle", "0"]
    command += ["--device", "cpu", "--threads", "1", "--lanes", "1", "--memory", "2G"]
    command += ["--socket", str(address.path), "--spool", str(directory / "spool")]
    with (
        (directory / "broker.log").open("wb") as log,
        processes.start(command, stdout=log, stderr=log) as broker,
    ):
        until(lambda: _answers(address), "a broker")
        made = Jupyter(
            directory,
            python=python,
            JGPU_ADDRESS=str(address),
            JUPYTER_DEFAULT_PROVISIONER_NAME="jgpu-provisioner",
            OMP_NUM_THREADS="1",
        )
        made.broker = address
        try:
            yield made
        finally:
            made.close()
            broker.end()


def _answers(address):
    try:
        return ask(address, AskStatus(), 15)
    except BrokerUnreachable:
        return False


def in_front(page, name):
    """Bring a notebook to the front."""
    page.view.evaluate(
        "path => void jupyterapp.commands.execute('docmanager:open', { path })", name
    )
    page.view.get_by_role("tab", name=name, selected=True).wait_for()
    playwright.expect(page.cells.first).to_be_visible()


def says(page, text, timeout_ms=60_000):
    """Wait until the status has this in it."""
    playwright.expect(page.status).to_contain_text(text, timeout=timeout_ms)


def row(page, kernel):
    """A kernel's row in the panel."""
    return page.view.locator(f"[data-jgpu-kernel='{kernel}']")


def kill(kernel):
    """Kill a kernel's process as nothing else would."""
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/cmdline", "rb") as file:
                command = file.read()
        except OSError:
            continue
        if f"kernel-{kernel}.json".encode() in command:
            os.kill(int(pid), signal.SIGKILL)
            return
    raise AssertionError(f"no process of {kernel}")
