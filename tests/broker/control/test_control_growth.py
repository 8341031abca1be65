"""Tables of the control process, each filled past its bound."""

import asyncio
import socket
from pathlib import Path

from jgpu.broker.control.executors.strikes import Strikes
from jgpu.broker.control.listening.channel import ExecutorChannel
from jgpu.broker.control.quotas.groups import Groups
from jgpu.broker.control.quotas.ledger.charges import UsageLedger
from jgpu.broker.control.quotas.ledger.meter import Charge
from jgpu.broker.control.quotas.ledger.usage import UsageHistory
from jgpu.wire.messages import Evict


def test_groups_are_remembered_of_the_last_users():
    groups = Groups({}, lambda user: frozenset({f"group of {user}"}))
    for number in range(5000):
        groups.refresh(f"user{number}", 0.0)
    assert [groups.is_fresh(f"user{n}", 1.0) for n in (0, 903, 904, 4999)] == [
        False,
        False,
        True,
        True,
    ]
    assert groups.of("user4999") == {"group of user4999"}


def test_windows_go_with_the_usage_that_they_show():
    usage = UsageHistory()
    usage.add("user0", 2.0, 1e6)
    for number in range(5000):
        assert usage.window(f"user{number}", 3600.0).used(1e6) == (2.0 if not number else 0.0)
    usage.forget(1e6 - 3600)
    assert len(usage._windows) == 1
    assert usage.window("user0", 3600.0).used(1e6) == 2.0


def test_rows_that_cannot_be_written_are_not_kept_without_end(tmp_path):
    async def filled():
        ledger = UsageLedger("sqlite://", Path(tmp_path), "run", None, interval_s=1.0)
        ledger.keep(Charge("run", n, 1, "user1", "cpu", "", 0.0, 1.0, 1.0) for n in range(200_010))
        report = ledger._charges, ledger.note
        await ledger.close()
        return report

    charges, note = asyncio.run(filled())
    assert len(charges) == 200_000
    assert min(key[1] for key in charges) == 10
    assert "oldest usage is lost" in note


def test_a_channel_that_nobody_reads_says_so():
    async def filled():
        ours, theirs = socket.socketpair()
        channel = ExecutorChannel(ours, lambda notice: None, lambda reason: None)
        assert not channel.is_stuck
        count = 0
        while not channel.is_stuck:
            channel.send(Evict(1))
            count += 1
        channel.close()
        theirs.close()
        return count

    assert asyncio.run(filled()) < 100_000


def test_strikes_are_remembered_of_few():
    strikes = Strikes(limit=1, window_s=60.0, pause_s=5.0)
    for number in range(1, 5001):
        strikes.note(f"user{number}", float(number), number.to_bytes(16, "big"))
        strikes.validate()
    assert len(strikes._held) <= 5
    assert strikes.struck("user5000", (5000).to_bytes(16, "big"))
    assert not strikes.struck("user1", (1).to_bytes(16, "big"))
