"""A host of a test's own: a real broker, and real kernels and programs that share its device.

Everything lives below one directory; everything started is ended by `close`.
"""

import contextlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import processes
from jupyter_client.kernelspec import KernelSpecManager
from jupyter_client.manager import KernelManager
from world import switch

from jgpu.broker.flightpage import FlightPage
from jgpu.kernelprovider.kernelspec import Place, install
from jgpu.wire.address import Address
from jgpu.wire.asking import ask
from jgpu.wire.messages import AskStatus

__all__ = ["Host", "Notebook", "Said", "until"]

DEADLINE_S = 45.0
#: Settings of the tests' own environment that would reach kernels and brokers.
_PRIVATE = ("COV_", "IPYTHON", "JGPU_", "JPY_", "JUPYTER_", "PYTEST_")


def until(condition, what, timeout_s=DEADLINE_S):
    """Wait for a condition of another process; its value."""
    deadline = time.monotonic() + timeout_s
    while not (value := condition()):
        assert time.monotonic() < deadline, f"{what} did not come about"
        time.sleep(0.01)
    return value


class Host:
    """A directory, the broker of the moment, and the kernels and programs started so far."""

    def __init__(self, directory, device="cpu", *options):
        self.directory = directory
        self.address = Address(directory / "broker.sock", "environment")
        self.broker = None
        memory = () if "--memory" in options else ("--memory", "2G")
        self._options = ["--device", device, "--threads", "1", *memory, *options]
        self._open = contextlib.ExitStack()
        self._count = 0
        home = directory / "home"
        home.mkdir()
        outside = {k: v for k, v in os.environ.items() if not k.startswith(_PRIVATE)}
        self.environ = outside | {
            **switch(),
            "HOME": str(home),
            "IPYTHONDIR": str(home / "ipython"),
            "JGPU_ADDRESS": str(self.address),
            "JUPYTER_RUNTIME_DIR": str(directory),
            "OMP_NUM_THREADS": "1",
        }

    def start(self):
        """Start a broker and wait until its device serves."""
        command = [sys.executable, "-m", "jgpu", "broker", "--private", *self._options]
        command += ["--socket", str(self.address.path), "--spool", str(self.directory / "spool")]
        with (self.directory / "broker.log").open("ab") as log:
            self.broker = processes.start(
                command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, env=self.environ
            )
        until(lambda: self.state() == "ready", "a ready executor")
        return self

    def kill(self):
        """Kill the broker as no broker wants to be ended."""
        self.broker.kill()
        self.broker.wait(DEADLINE_S)

    def status(self):
        """What `jgpu status --json` prints."""
        return json.loads(ask(self.address, AskStatus(), DEADLINE_S).json)

    def state(self):
        """The device's state, "" while nobody answers."""
        try:
            return self.status()["devices"][0]["state"]
        except ConnectionError:
            assert self.broker.poll() is None, (self.directory / "broker.log").read_text()
            return ""

    @property
    def device(self):
        """The one device's row of the status."""
        (row,) = self.status()["devices"]
        return row

    @property
    def sessions(self):
        """The sessions' rows of the status, by their kernels' ids."""
        return {row["kernel_id"]: row for row in self.status()["sessions"]}

    def flight_page(self):
        """What the executor says of its lanes, through its descriptors; to be closed."""
        for link in Path(f"/proc/{self.device['pid']}/fd").iterdir():
            with contextlib.suppress(OSError):
                if "jgpu-flight" in os.readlink(link):
                    return FlightPage.adopt(os.open(link, os.O_RDWR))
        raise AssertionError("no executor without a flight page")

    def program(self, source, user="user1", *arguments, **environ):
        """A `jgpu run` of Python source, or of a file's, talked to through pipes."""
        command = [sys.executable, "-m", "jgpu", "run", "--user", user, "--", sys.executable]
        command += [source] if isinstance(source, Path) else ["-c", source]
        process = processes.start(
            [*command, *map(str, arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=self.environ | environ,
            text=True,
        )
        self._open.callback(process.__exit__)
        return process

    def notebook(self, path="lesson.ipynb", user="user1", **environ):
        """A kernel of the shared-GPU kind, ready for cells."""
        self._count += 1
        spec = install(Place(self.directory / "prefix"))
        manager = KernelManager(
            kernel_name=spec.name,
            kernel_spec_manager=KernelSpecManager(kernel_dirs=[str(spec.parent)]),
            connection_file=str(self.directory / f"kernel-{self._count}.json"),
        )
        own = {"JPY_SESSION_NAME": path, "JGPU_USER": user}
        # Stays open: a restart writes to it again.
        log = self._open.enter_context((self.directory / f"kernel-{self._count}.log").open("ab"))
        manager.start_kernel(env=self.environ | own | environ, stdout=log, stderr=log)
        notebook = Notebook(manager)
        self._open.callback(notebook.close)
        notebook.connect()
        return notebook

    def leave(self):
        """End the kernels and programs and wait until nothing is left of them."""
        self._open.close()
        until(lambda: not self.status()["sessions"], "the sessions' end")
        until(lambda: not self.device["used_bytes"], "free memory")

    def close(self):
        """End everything."""
        self._open.close()
        if self.broker is not None and self.broker.poll() is None:
            self.broker.end()


class Said:
    """What a cell left behind: its streams, and its error as the notebook shows it."""

    def __init__(self):
        self.stdout = ""
        self.stderr = ""
        self.error = ""
        self.sentence = ""
        self.shown = ""

    def take(self, message):
        """Take in a message of the cell's."""
        content = message["content"]
        if message["msg_type"] == "stream":
            setattr(self, content["name"], getattr(self, content["name"]) + content["text"])
        elif message["msg_type"] == "error":
            self.error, self.sentence = content["ename"], content["evalue"]
            self.shown = "\n".join(content["traceback"])


class Notebook:
    """A kernel and its client: cells are run, or begun and awaited."""

    def __init__(self, manager):
        self.manager = manager
        self.client = None

    @property
    def id(self):
        """The kernel's id."""
        return self.manager.kernel_id

    @property
    def pid(self):
        """The kernel's process."""
        return self.manager.provisioner.pid

    def connect(self):
        """Wait until the kernel answers, at first and after a restart."""
        if self.client is not None:
            self.client.stop_channels()
        self.client = self.manager.client()
        self.client.start_channels()
        self.client.wait_for_ready(timeout=DEADLINE_S)

    def begin(self, code):
        """Send a cell and come back once it has printed "begun"; its number for `end`."""
        number = self._send(code)
        said = Said()
        while "begun" not in said.stdout:
            message = self.client.get_iopub_msg(timeout=DEADLINE_S)
            if message["parent_header"].get("msg_id") == number:
                said.take(message)
                assert message["content"].get("execution_state") != "idle", said.shown
        return number

    def end(self, number, timeout_s=DEADLINE_S):
        """Wait for a cell's end; what it said since `begin`."""
        said = Said()
        deadline = time.monotonic() + timeout_s
        while True:
            message = self.client.get_iopub_msg(timeout=max(0.0, deadline - time.monotonic()))
            if message["parent_header"].get("msg_id") != number:
                continue
            said.take(message)
            if message["content"].get("execution_state") == "idle":
                return said

    def run(self, code, timeout_s=DEADLINE_S):
        """Run a cell to its end."""
        return self.end(self._send(code), timeout_s)

    def ok(self, code, timeout_s=DEADLINE_S):
        """What a cell prints that has to succeed."""
        said = self.run(code, timeout_s)
        assert not said.error, said.shown
        return said.stdout.strip()

    def _send(self, code):
        """Send a cell, which is not to be skipped where the one before has raised; its number."""
        return self.client.execute(code, stop_on_error=False)

    def close(self):
        """End the kernel, alive or not."""
        if self.client is not None:
            self.client.stop_channels()
        self.manager.shutdown_kernel(now=True)
