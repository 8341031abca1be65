"""Bytes in and out, the arena's ring, acknowledgements, generators, ends of sessions."""

import os
import socket

import pytest
from client import TOKEN, Executor, matmul

from jgpu.wire import limits
from jgpu.wire import messages as m
from jgpu.wire.framing import FrameReader, marker


def test_bytes_come_back_as_they_went_in(connect):
    client = connect()
    data = os.urandom(100_000)
    buffer = client.upload(data)
    assert client.download(buffer, 1000, 5000) == data[5000:6000]


def test_an_upload_larger_than_the_arena_goes_in_pieces(connect):
    client = connect()
    data = os.urandom(5 << 20)
    buffer = client.upload_arena(data)
    piece = 256 << 10
    got = b"".join(client.download(buffer, piece, at, arena=0) for at in range(0, len(data), piece))
    assert got == data


def test_the_ring_is_given_back_to_the_last_byte(connect):
    client = connect()
    for size in (1000, 300_000, 77, 400_001):
        client.upload_arena(os.urandom(size))
    client.sync()
    ring = client.arena.ring
    assert ring.released == ring.reserved


def test_a_stream_without_replies_is_acknowledged(connect):
    client = connect()
    for _ in range(40):
        client.upload(b"1234")
    ack = client.receive(m.Ack)
    assert ack.arena == 0
    assert 0 < client.reader.peer_seen <= client.writer.sequence
    client.sync()
    assert client.reader.peer_seen == client.writer.sequence


def test_an_empty_buffer_is_a_buffer(connect):
    client = connect()
    buffer = client.upload(b"")
    assert client.download(buffer, 0) == b""


def test_memory_is_counted_per_session_and_freed_in_order(either):
    client = either.connect("user1")
    buffer = client.upload(bytes(10_000))
    other = client.upload(bytes(500))
    client.sync()
    memory = client.memory()
    assert (memory.used, memory.peak) == (10_500, 10_500)
    client.send(m.Tag((buffer,), m.RESIDENT))
    client.sync()
    (session,) = [s for s in either.report().sessions if s.id == client.session]
    assert (session.resident_bytes, session.ephemeral_bytes) == (10_000, 500)
    client.send(m.Free((buffer,)))
    assert client.download(other, 500) == bytes(500)
    assert (client.memory().used, client.memory().peak) == (500, 10_500)
    client.close()
    either.ended(client.session)


def test_generators_keep_their_state(connect):
    client = connect()
    request = client.next_request()
    client.send(m.GetRng(client.next_work(), request))
    state = client.reply(request).state
    client.send(m.Seed(client.next_work(), 5))
    second = client.next_request()
    client.send(m.GetRng(client.next_work(), second))
    assert client.reply(second).state != state
    client.send(m.SetRng(client.next_work(), state))
    third = client.next_request()
    client.send(m.GetRng(client.next_work(), third))
    assert client.reply(third).state == state


def test_a_seed_is_not_taken_back_with_the_works_around_it(connect):
    client, other = connect(), connect()
    square = client.upload(bytes(4 * 512 * 512))
    for _ in range(20):
        client.run(matmul(ops=20), [square], live=b"")
    client.send(m.Seed(client.next_work(), 5))
    client.run(matmul(ops=20), [square], live=b"")
    assert client.reply(client.cancel())
    other.send(m.Seed(other.next_work(), 5))
    states = []
    for each in (client, other):
        request = each.next_request()
        each.send(m.GetRng(each.next_work(), request))
        states.append(each.reply(request).state)
    assert states[0] == states[1]


def test_nonsense_for_a_generator_is_a_failure_that_the_session_survives(connect):
    client = connect()
    client.send(m.SetRng(client.next_work(), b"nonsense"))
    client.sync()
    (failure,) = client.failures
    assert failure.error == "RuntimeError"
    assert "random number generator" in failure.text


@pytest.mark.parametrize(
    "message",
    [
        lambda c: m.Download(c.next_work(), 1, 99, 0, 4),
        lambda c: m.Download(c.next_work(), 1, 1, 0, limits.INLINE_BYTES + 1),
        lambda c: m.Download(c.next_work(), 1, 1, 0, 4, arena=1 << 30),
        lambda c: m.Upload(c.next_work(), 5, 8, 4, data=b"1234"),
        lambda c: m.Upload(c.next_work(), 5, 2, 0, data=b"1234"),
        lambda c: m.Upload(c.next_work(), 5, 1 << 20, 0, arena=1 << 19, count=10),
        lambda c: m.Sync(7, 1),
        lambda c: m.Resynced(1),
    ],
    ids=[
        "unknown",
        "too-large",
        "past-arena",
        "no-first",
        "overfull",
        "past-ring",
        "gap",
        "resync",
    ],
)
def test_a_broken_client_gets_a_sentence_and_loses_its_session_alone(connect, message):
    neighbour, client = connect("user2"), connect()
    client.upload(b"1234")
    client.send(message(client))
    refused = client.receive(m.Refused)
    assert refused.reason == "protocol"
    assert refused.text.endswith(".")
    with pytest.raises(EOFError):
        client.receive(m.Synced)
    assert neighbour.sync()


def test_the_end_of_the_stream_frees_the_memory(cpu):
    client = cpu.connect("user1")
    client.upload_arena(bytes(1 << 20))
    client.sync()
    before = cpu.report().used
    client.close()
    ended = cpu.ended(client.session)
    assert ended.text == ""
    assert ended.device_seconds > 0
    assert cpu.report().used == before - (1 << 20)


def test_detach_ends_a_session_whose_stream_is_held_open(cpu):
    client = cpu.connect("user1")
    cpu.control.send(m.Detach(client.session, "The kernel's process is gone."))
    assert cpu.ended(client.session).text == "The kernel's process is gone."
    with pytest.raises(EOFError):
        client.receive(m.Synced)


def test_quit_ends_a_session_in_good_order(cpu):
    client = cpu.connect("user1")
    client.send(m.Quit())
    assert cpu.ended(client.session).text == ""


def test_a_client_that_never_reads_is_dropped_and_nobody_else_notices(cpu):
    client, neighbour = cpu.connect("user1"), cpu.connect("user2")
    buffer = client.upload(bytes(32 << 10))
    # 1100 replies of 32 KiB are more than may wait for anybody.
    requests = [m.Download(client.next_work(), k, buffer, 0, 32 << 10) for k in range(1100)]
    client.send_all(requests)
    assert "does not read" in cpu.ended(client.session).text
    assert neighbour.sync()
    neighbour.close()
    cpu.ended(neighbour.session)


def test_an_arena_that_can_shrink_is_refused(cpu):
    descriptor = os.memfd_create("unsealed", os.MFD_CLOEXEC)
    os.ftruncate(descriptor, 1 << 20)
    ours, theirs = socket.socketpair()
    cpu.sessions += 1
    cpu.control.send(
        m.Adopt(cpu.sessions, "user1", "", 1 << 20, bytes(16)), [theirs.fileno(), descriptor]
    )
    assert "sealed" in cpu.ended(cpu.sessions).text
    os.close(descriptor)
    ours.close()
    theirs.close()


def test_the_executor_ends_with_the_control_process():
    with Executor("null") as executor:
        client = executor.connect()
        executor.control.socket.close()
        assert executor.process.wait(10) == 0
        client.duplicate.close()
        with pytest.raises(EOFError):
            client.receive(m.Synced)


def test_an_order_to_stop_is_obeyed():
    with Executor("null") as executor:
        executor.control.send(m.AskStop())
        assert executor.process.wait(10) == 0


def test_a_stream_cut_inside_a_frame_begins_anew_at_the_marker(cpu):
    client = cpu.connect("user1", epoch=3)
    # What the executor before had half read, and what came after it.
    half = client.writer.encode(m.Sync(17, 4), 0)
    client.socket.sendall(half[5:])
    client.socket.sendall(half)
    client.reader = FrameReader(m.ExecutorMessage, token=TOKEN)
    resync = client.receive(m.Resync)
    assert (resync.epoch, resync.lost) == (3, True)
    client.receive(m.Ready)
    stream = marker(TOKEN, 3) + client.writer.encode(m.Resynced(3), 0)
    for k in range(len(stream)):
        client.socket.sendall(stream[k : k + 1])
    client.work = 20
    # A tensor from before is lost, not a mistake of the client's.
    reply = client.download(5, 4)
    assert reply.error == "DeviceLost"
    assert client.download(client.upload(b"abcd"), 4) == b"abcd"
    client.close()
    cpu.ended(client.session)
