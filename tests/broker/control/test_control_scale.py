"""A class of five hundred with sixty sessions, watched by five: what rest costs, and how soon news
come."""

import os
import time
from pathlib import Path

import pytest
from control_client import until

from jgpu.wire.messages import SetQuota, UsePolicy, Welcome
from jgpu.wire.reports.watching import watch

USERS, SESSIONS, WATCHERS = 500, 60, 5
CONFIG = [
    "c.JgpuBroker.executor_command = []",
    "c.JgpuBroker.max_sessions = 600",
    "c.JgpuBroker.max_user_sessions = 600",
]


def cpu_s(pid):
    """Processor time of a process, up to now."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_a_watched_class_that_rests_costs_next_to_nothing_and_news_are_told_at_once(start_broker):
    broker = start_broker(config=CONFIG)
    for report in watch(broker.address, 100.0, every_s=100.0):
        if report.devices[0].state == "ready":
            break
    for number in range(USERS):
        client = broker.client()
        assert isinstance(client.hello(user=f"user{number}"), Welcome)
        if number >= SESSIONS:
            client.close()
    until(lambda: len(broker.status()["sessions"]) == SESSIONS, "sessions that have ended")
    until(lambda: {row["state"] for row in broker.status()["sessions"]} == {"idle"}, "rest")
    watchers = [watch(broker.address, 30.0, every_s=30.0) for _ in range(WATCHERS)]
    assert [len(next(each).users) for each in watchers] == [USERS] * WATCHERS
    pids = broker.process.pid, broker.status()["devices"][0]["pid"]
    before, began = sum(map(cpu_s, pids)), time.monotonic()
    time.sleep(10.0)
    took_s = time.monotonic() - began
    share = (sum(map(cpu_s, pids)) - before) / took_s
    for number in range(10):
        wait_for_news(broker, watchers[0], number)
    for each in watchers:
        each.close()
    assert share < 0.02


def wait_for_news(broker, reports, number):
    """Change the policy, or a quota, and wait until a watcher is told."""
    policy, user = ("fifo", "fair")[number // 2 % 2], f"user{number}"
    if number % 2:
        broker.ask(SetQuota(f"user:{user}", (("weight", "3"),), new=True))
    else:
        broker.ask(UsePolicy(policy))
    for report in reports:
        weights = {row.name: row.weight for row in report.users}
        if weights[user] == 3.0 if number % 2 else report.devices[0].policy == policy:
            return
    raise AssertionError("it was not told")
