"""The real control process, the real executor on the cpu, and programs that use `cuda`."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest
import torch

from jgpu.wire.address import Address, ask
from jgpu.wire.messages import AskStatus

pytestmark = pytest.mark.e2e

DEADLINE_S = 45.0
PROGRAM = """
import sys, torch
kept = torch.arange(1000.0).cuda()
print("ready", float(kept.sum()), flush=True)
for line in sys.stdin:
    try:
        if line.strip() == "new":
            kept = torch.ones(10).cuda()
        print("ok", float((kept * 2).sum()), flush=True)
    except Exception as error:
        print(type(error).__name__, str(error).replace(chr(10), " "), flush=True)
"""


def until(condition, what):
    deadline = time.monotonic() + DEADLINE_S
    while not (value := condition()):
        assert time.monotonic() < deadline, f"{what} did not come about"
        time.sleep(0.01)
    return value


class Host:
    """A broker's directory, the programs run there, and the broker of the moment."""

    def __init__(self, directory):
        self.address = Address(directory / "broker.sock", "environment")
        self.spool = directory / "spool"
        self.environ = os.environ | {"JGPU_ADDRESS": str(self.address)}
        self.programs = []
        self.broker = None

    def start(self):
        words = ["--device", "cpu", "--memory", "1G", "--threads", "1", "--private"]
        words += ["--socket", str(self.address.path), "--spool", str(self.spool)]
        self.broker = subprocess.Popen([sys.executable, "-m", "jgpu", "broker", *words])
        until(lambda: self.state() == "ready", "a ready executor")
        return self

    def status(self):
        return json.loads(ask(self.address, AskStatus(), DEADLINE_S).json)

    def state(self):
        try:
            return self.status()["devices"][0]["state"]
        except ConnectionError:
            assert self.broker.poll() is None
            return ""

    def program(self, user="user1"):
        command = [sys.executable, "-m", "jgpu", "run", "--user", user, "--"]
        process = subprocess.Popen(
            [*command, sys.executable, "-c", PROGRAM],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=self.environ,
            text=True,
        )
        self.programs.append(process)
        assert process.stdout.readline() == "ready 499500.0\n"
        return process

    def stop(self):
        for process in self.programs:
            process.kill()
            process.communicate()
        if self.broker.poll() is None:
            self.broker.terminate()
        self.broker.wait(DEADLINE_S)


def say(program, word):
    program.stdin.write(word + "\n")
    program.stdin.flush()
    return program.stdout.readline().strip()


@pytest.fixture
def host(tmp_path):
    host = Host(tmp_path).start()
    yield host
    host.stop()


def test_programs_of_several_users_share_one_executor(host):
    first, second = host.program("user1"), host.program("user2")
    assert say(first, "old") == say(second, "old") == "ok 999000.0"
    status = host.status()
    assert sorted(row["user"] for row in status["sessions"]) == ["user1", "user2"]
    assert len(status["devices"]) == 1
    assert all(row["ephemeral_bytes"] >= 4000 for row in status["sessions"])
    assert status["broker"]["torch"] == torch.__version__


def test_memory_of_a_killed_program_is_free_within_a_second(host):
    host.program()
    session = host.status()["sessions"][0]
    os.kill(session["pid"], signal.SIGKILL)
    started = time.monotonic()
    until(lambda: not host.status()["sessions"], "the session's end")
    assert time.monotonic() - started < 1.0
    until(lambda: host.status()["devices"][0]["used_bytes"] == 0, "free memory")


def test_a_killed_executor_loses_tensors_and_nothing_else(host):
    first, second = host.program("user1"), host.program("user2")
    os.kill(host.status()["devices"][0]["pid"], signal.SIGKILL)
    until(lambda: host.status()["devices"][0]["restarts"] == 1, "a restart")
    until(lambda: host.state() == "ready", "a ready executor")
    for program in (first, second):
        assert "again" in say(program, "old")
        assert say(program, "new") == "ok 20.0"
        assert say(program, "old") == "ok 20.0"


def test_a_killed_broker_is_an_error_and_the_next_one_serves(host):
    program = host.program()
    host.broker.kill()
    host.broker.wait()
    assert not say(program, "old").startswith("ok")
    assert not say(program, "new").startswith("ok")
    host.start()
    assert say(program, "new") == "ok 20.0"
