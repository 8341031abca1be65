"""A real broker process around the scripted executor."""

import contextlib
import resource
import socket
import sys
import tempfile
from pathlib import Path

import processes
import pytest
from control_client import RunningBroker, until

from jgpu.wire.address import Address

SCRIPTED = Path(__file__).with_name("scripted_executor.py")


@pytest.fixture
def sockets():
    """A directory whose path leaves room for what lies below it."""
    with tempfile.TemporaryDirectory(prefix="jgpu-") as directory:
        yield Path(directory)


@pytest.fixture
def start_broker(tmp_path, sockets):
    """Start `jgpu broker` with these words and configuration lines; stopped at the end."""
    started = []

    def start(*words, script="", config=(), device="null", wait=True, files=None):
        path = sockets / "broker.sock"
        lines = [
            f"c.JgpuBroker.executor_command = [{sys.executable!r}, {str(SCRIPTED)!r}]",
            f"c.JgpuBroker.executor_environment = {{'SCRIPT': {script!r}}}",
            f"c.JgpuBroker.spool = {str(tmp_path / 'spool')!r}",
            *config,
        ]
        file = tmp_path / f"config{len(started)}.py"
        file.write_text("\n".join(lines))
        log = tmp_path / f"log{len(started)}"
        command = [sys.executable, "-m", "jgpu", "broker", "--config", str(file)]
        with log.open("wb") as stream:
            process = processes.start(
                [*command, "--socket", str(path), "--device", device, *words],
                stdout=stream,
                stderr=stream,
            )
        if files is not None:
            resource.prlimit(process.pid, resource.RLIMIT_NOFILE, (files, files))
        address = path if "--private" in words else path.with_name("admin.sock")
        broker = RunningBroker(Address(address, "environment"), process, log)
        started.append(broker)
        if wait:
            until(lambda: process.poll() is not None or _answers(address), log.read_text())
        return broker

    yield start
    for broker in started:
        broker.stop()


def _answers(path):
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe, contextlib.suppress(OSError):
        probe.connect(str(path))
        return True
    return False


@pytest.fixture
def broker(start_broker):
    """A broker whose executor is ready."""
    return start_broker().ready()
