"""A real broker process with a device that computes nothing."""

import json
import sys
import time
from contextlib import contextmanager

import processes

from jgpu.errors import BrokerUnreachable
from jgpu.wire.address import Address
from jgpu.wire.asking import ask
from jgpu.wire.messages import AskStatus


@contextmanager
def real_broker(directory, *options, private=True):
    """The address of a broker that lives below `directory`; not `private`: a host's."""
    address = Address(directory / "broker.sock", "environment")
    command = [sys.executable, "-m", "jgpu", "broker", "--socket", str(address.path)]
    command += [*(("--private", "--idle", "0") if private else ()), *options]
    with (directory / "broker.log").open("wb") as log:
        process = processes.start(command, stdout=log, stderr=log)
    try:
        until(lambda: process.poll() is None and answers(address))
        yield address
    finally:
        process.end()


def answers(address):
    try:
        status(address)
    except BrokerUnreachable:
        return False
    return True


def status(address):
    """What `jgpu status --json` prints."""
    return json.loads(ask(address, AskStatus()).json)


def until(condition, timeout_s=30.0):
    """Wait for a condition of another process; its value."""
    deadline = time.monotonic() + timeout_s
    while not (value := condition()):
        assert time.monotonic() < deadline, condition
        time.sleep(0.01)
    return value
