"""A real broker, on the CPU mostly, and Python processes with a seat at it."""

import os
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import processes
from world import switch

from jgpu.errors import BrokerUnreachable
from jgpu.wire.address import Address
from jgpu.wire.asking import ask
from jgpu.wire.messages import AskStatus

__all__ = ["Broker", "Seat", "broker_on", "cpu_broker", "until_it_answers"]

#: what decides how torch computes must be the same in every process that is compared
_THREADS = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


class Seat:
    """The outcome of a process: its output, and its end checked where it matters."""

    def __init__(self, done):
        self.returncode = done.returncode
        self.out = done.stdout
        self.err = done.stderr

    def check(self):
        """Itself, if the process ended well."""
        assert self.returncode == 0, f"{self.out[-4000:]}\n{self.err[-8000:]}"
        return self


class Broker:
    """A broker process of its own; `seat` runs Python with the environment a kernel has."""

    def __init__(self, address, process, log):
        self.address = address
        self.process = process
        self.log = log

    def environment(self, **more):
        """The environment of a process with a seat."""
        base = {k: v for k, v in os.environ.items() if not k.startswith(("JGPU_", "COV_"))}
        return {
            **base,
            **switch(),
            **_THREADS,
            "JGPU_ADDRESS": str(self.address),
            "JGPU_TICKET": "test",
            **more,
        }

    def seat(self, source, *arguments, timeout_s=100, environment=None):
        """Run Python source (text), or a file (a Path), whose `cuda` is the shared device."""
        where = [str(source)] if isinstance(source, Path) else ["-c", source]
        done = processes.run(
            [sys.executable, *where, *map(str, arguments)],
            env=self.environment(**(environment or {})),
            capture_output=True,
            text=True,
            timeout=timeout_s,
        )
        return Seat(done)


def cpu_broker(directory, *options, threads=1, lanes=1):
    """A broker below `directory` that serves from the CPU until the block ends."""
    return broker_on("cpu", directory, "--threads", str(threads), "--lanes", str(lanes), *options)


@contextmanager
def broker_on(device, directory, *options):
    """A broker below `directory` that serves from that kind of device until the block ends."""
    address = Address(Path(directory) / "broker.sock", "environment")
    command = [
        *(sys.executable, "-m", "jgpu", "broker", "--private", "--device", device),
        *("--socket", str(address.path), "--spool", str(Path(directory) / "spool"), *options),
    ]
    log = Path(directory) / "broker.log"
    clean = {k: v for k, v in os.environ.items() if not k.startswith("JGPU_")}
    with log.open("wb") as output:
        process = processes.start(command, stdout=output, stderr=output, env=clean)
    try:
        until_it_answers(process, address, log)
        yield Broker(address, process, log)
    finally:
        process.end()


def until_it_answers(process, address, log):
    """Wait until a broker that was just started takes connections."""
    deadline = time.monotonic() + 60
    while True:
        assert process.poll() is None, log.read_text()
        assert time.monotonic() < deadline, log.read_text()
        try:
            ask(address, AskStatus())
        except BrokerUnreachable:
            time.sleep(0.02)
        else:
            return
