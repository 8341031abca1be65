"""Memory that is short: what goes to the host, what comes back, and that nobody fails for it."""

import os
import random
import time

import pytest
from client import DEADLINE_S, Executor, add, add_in_place, scale

from jgpu.wire import messages as m

MIB = 1 << 20


@pytest.fixture(scope="module", params=["pool", "file"])
def small(request):
    """An executor with room for a few sessions' ephemeral memory; spilled to memory or a file."""
    pool = 64 * MIB if request.param == "pool" else MIB
    with Executor("cpu", lanes=1, threads=1, capacity=8 * MIB, host_pool=pool) as executor:
        yield executor


@pytest.fixture
def connect(small):
    opened = []

    def open_one(user="user1", **adopt):
        opened.append(small.connect(user, **adopt))
        return opened[-1]

    yield open_one
    for client in opened:
        client.close()
        small.ended(client.session)


def until(small, condition):
    """The first report of which something holds."""
    deadline = time.monotonic() + DEADLINE_S
    while time.monotonic() < deadline:
        report = small.report()
        if condition({each.id: each for each in report.sessions}):
            return report
    raise TimeoutError(report)


def noise(nbytes, seed):
    return random.Random(seed).randbytes(nbytes)


def fetch(client, buffer, nbytes):
    """A buffer's bytes, piece by piece."""
    pieces = range(0, nbytes, 32 << 10)
    return b"".join(client.download(buffer, min(32 << 10, nbytes - at), at) for at in pieces)


def test_what_an_idle_session_keeps_goes_to_the_host_for_others_and_comes_back_equal(
    small, connect
):
    idle, busy = connect("user1"), connect("user2")
    model = idle.upload(noise(MIB, 1))
    idle.send(m.Tag((model,), m.RESIDENT))
    kept = [idle.upload(noise(2 * MIB, seed)) for seed in (2, 3)]
    idle.sync()
    first = busy.upload(noise(6 * MIB, 4))
    busy.sync()
    report = until(small, lambda sessions: sessions[busy.session].ephemeral_bytes == 6 * MIB)
    found = {each.id: each for each in report.sessions}[idle.session]
    assert (found.resident_bytes, found.spilled_bytes, found.state) == (MIB, 4 * MIB, "spilled")
    assert small.ready.device.capacity == 8 * MIB
    assert report.used == 7 * MIB  # what is on the host is not on the device as well
    busy.send(m.Free((first,)))
    for seed, buffer in zip((2, 3), kept, strict=True):
        assert fetch(idle, buffer, 2 * MIB) == noise(2 * MIB, seed)
    assert fetch(idle, model, MIB) == noise(MIB, 1)
    assert until(small, lambda sessions: sessions[idle.session].spilled_bytes == 0)
    assert not idle.failures
    assert not busy.failures


@pytest.mark.parametrize("small", ["file"], indirect=True)
def test_three_times_the_capacity_is_served_one_after_the_other(small, connect):
    clients = [connect(f"user{number}") for number in range(6)]
    length = MIB
    step, total = add_in_place(length), add(length)
    data = {client.session: noise(4, client.session) * length for client in clients}
    held = {}
    for client in clients:
        held[client.session] = client.upload(data[client.session])
    for _ in range(3):
        for client in clients:
            buffer = held[client.session]
            client.run(step, [buffer, buffer], live=b"", ends_iteration=True)
    for client in clients:
        client.sync()
    for client in clients:
        made = client.run(total, [held[client.session]] * 2, ends_iteration=True)
        client.send(m.Free((made,)))
        assert not client.failures
    before = [fetch(client, held[client.session], 64) for client in clients]
    assert len({bytes(each) for each in before}) == len(clients)
    for client in clients:
        client.sync()
        assert not client.failures


def test_what_was_dropped_while_it_was_away_does_not_come_back(small, connect):
    idle, busy = connect("user1"), connect("user2")
    gone, stays = idle.upload(noise(3 * MIB, 5)), idle.upload(noise(MIB, 6))
    idle.sync()
    large = busy.upload(noise(7 * MIB, 7))
    busy.sync()
    until(small, lambda sessions: sessions[idle.session].spilled_bytes == 4 * MIB)
    idle.send(m.Free((gone,)))
    until(small, lambda sessions: sessions[idle.session].spilled_bytes == MIB)
    busy.send(m.Free((large,)))
    busy.sync()
    assert fetch(idle, stays, MIB) == noise(MIB, 6)
    assert until(small, lambda sessions: sessions[idle.session].ephemeral_bytes == MIB)


def test_a_session_that_ends_while_it_is_away_leaves_nothing(small, connect):
    idle, busy = connect("user1"), connect("user2")
    idle.upload(noise(4 * MIB, 8))
    idle.sync()
    busy.upload(noise(6 * MIB, 9))
    busy.sync()
    until(small, lambda sessions: sessions[idle.session].spilled_bytes == 4 * MIB)
    idle.socket.close()
    idle.duplicate.close()
    small.ended(idle.session)
    more = busy.upload(noise(2 * MIB, 10))
    assert fetch(busy, more, 64) == noise(2 * MIB, 10)[:64]


def test_what_a_failed_cell_left_goes_first_and_comes_back_only_when_it_is_named(small, connect):
    failed, rested, busy = connect("user1"), connect("user2"), connect("user3")
    old = rested.upload(noise(2 * MIB, 11))
    rested.sync()
    before = failed.upload(noise(MIB, 12))
    failed.send(m.CellStarted("2"))
    traceback = failed.upload(noise(2 * MIB, 13))
    failed.sync()
    failed.send(m.CellEnded(failed=True))
    failed.sync()
    until(small, lambda sessions: sessions[failed.session].state == "idle")
    large = busy.upload(noise(4 * MIB, 14))
    busy.sync()
    report = until(small, lambda sessions: sessions[busy.session].ephemeral_bytes == 4 * MIB)
    spilled = {each.id: each.spilled_bytes for each in report.sessions}
    assert spilled == {failed.session: 2 * MIB, rested.session: 0, busy.session: 0}
    # What it left stays on the host while the session works with the rest of its memory.
    again = failed.run(scale(4), [before], (2.0,), ends_iteration=True)
    failed.send(m.Free((again,)))
    failed.sync()
    spilled = {each.id: each.spilled_bytes for each in small.report().sessions}
    assert spilled[failed.session] == 2 * MIB
    busy.send(m.Free((large,)))
    busy.sync()
    assert fetch(failed, traceback, 2 * MIB) == noise(2 * MIB, 13)
    assert until(small, lambda sessions: sessions[failed.session].spilled_bytes == 0)
    assert fetch(rested, old, MIB) == noise(2 * MIB, 11)[:MIB]


def test_a_full_disk_leaves_memory_where_it_is_and_others_wait(tmp_path):
    """A spool of 1 MiB: what does not fit there stays, and comes to no harm."""
    limit = MIB

    def poor():
        import resource

        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))

    with Executor(
        "cpu", lanes=1, threads=1, capacity=8 * MIB, spool=os.fspath(tmp_path), preexec=poor
    ) as executor:
        idle, busy = executor.connect("user1"), executor.connect("user2")
        kept = idle.upload(noise(4 * MIB, 15))
        idle.sync()
        busy.upload(noise(6 * MIB, 16))
        request = busy.next_request()
        busy.send(m.Sync(busy.next_work(), request))
        waiting = busy.receive(m.Waiting)
        assert waiting.waits_for == ("user1",)
        assert fetch(idle, kept, MIB) == noise(4 * MIB, 15)[:MIB]
        idle.send(m.Free((kept,)))
        assert isinstance(busy.reply(request), m.Synced)


@pytest.mark.parametrize(
    ("rule", "spilled"), [({"spill_after_s": 0.05}, MIB), ({"evict_after_s": 0.05}, 2 * MIB)]
)
def test_rules_about_rest_spill_and_evict_though_nobody_waits(rule, spilled):
    with Executor("cpu", lanes=1, capacity=8 * MIB, host_pool=8 * MIB, **rule) as executor:
        client = executor.connect("user1")
        model, kept = client.upload(noise(MIB, 17)), client.upload(noise(MIB, 18))
        client.send(m.Tag((model,), m.RESIDENT))
        client.sync()
        report = until(executor, lambda sessions: sessions[client.session].spilled_bytes == spilled)
        assert report.used == 2 * MIB - spilled
        assert report.sessions[0].spilled_resident_bytes == spilled - MIB
        assert fetch(client, model, MIB) == noise(MIB, 17)
        assert fetch(client, kept, MIB) == noise(MIB, 18)
