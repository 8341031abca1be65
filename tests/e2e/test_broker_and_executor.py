"""The real control process, the real executor on the cpu, and programs that use `cuda`."""

import os
import signal
import time

import pytest
import torch
from host import until

from jgpu.errors import ConfigError
from jgpu.wire.asking import ask
from jgpu.wire.messages import UsePolicy

pytestmark = pytest.mark.e2e

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


def started(host, user="user1"):
    """The program above, its first tensor on the device."""
    program = host.program(PROGRAM, user)
    assert program.line() == "ready 499500.0\n"
    return program


def say(program, word):
    program.stdin.write(word + "\n")
    program.stdin.flush()
    return program.line().strip()


def test_programs_of_several_users_share_one_executor(host):
    first, second = started(host, "user1"), started(host, "user2")
    assert say(first, "old") == say(second, "old") == "ok 999000.0"
    status = host.status()
    assert sorted(row["user"] for row in status["sessions"]) == ["user1", "user2"]
    assert len(status["devices"]) == 1
    assert all(row["ephemeral_bytes"] >= 4000 for row in status["sessions"])
    assert status["broker"]["torch"] == torch.__version__


def test_memory_of_a_killed_program_is_free_within_a_second(host):
    started(host)
    session = host.status()["sessions"][0]
    os.kill(session["pid"], signal.SIGKILL)
    killed = time.monotonic()
    until(lambda: not host.status()["sessions"], "the session's end")
    assert time.monotonic() - killed < 1.0
    until(lambda: host.status()["devices"][0]["used_bytes"] == 0, "free memory")


def test_what_a_client_repeats_does_not_fill_the_brokers_log(own_host):
    for number in range(130):
        with pytest.raises(ConfigError):
            ask(own_host.address, UsePolicy(f"none{number}"), 45)
    lines = (own_host.directory / "broker.log").read_text().splitlines()
    assert sum("refused" in line for line in lines) == 100


# Every day from notebooks (test_lost_devices); here from programs.
@pytest.mark.slow
def test_a_killed_executor_loses_tensors_and_nothing_else(own_host):
    first, second = started(own_host, "user1"), started(own_host, "user2")
    os.kill(own_host.status()["devices"][0]["pid"], signal.SIGKILL)
    until(lambda: own_host.status()["devices"][0]["restarts"] == 1, "a restart")
    until(lambda: own_host.state() == "ready", "a ready executor")
    for program in (first, second):
        assert "again" in say(program, "old")
        assert say(program, "new") == "ok 20.0"
        assert say(program, "old") == "ok 20.0"


@pytest.mark.slow
def test_a_killed_broker_is_an_error_and_the_next_one_serves(own_host):
    program = started(own_host)
    own_host.kill()
    assert not say(program, "old").startswith("ok")
    assert not say(program, "new").startswith("ok")
    own_host.start()
    assert say(program, "new") == "ok 20.0"
