"""Bytes to the device and back: small and large, a full arena, values that are told unasked."""

import pytest
from lesson import EMPTY, NEG, NEG_, Client
from memory_pair import CPU

from jgpu import errors
from jgpu.wire import messages as m

#: of the arena's half, which pieces are a quarter of
HALF = 1 << 19
PIECE = HALF // 4


@pytest.fixture
def client():
    made = Client()
    yield made
    made.validate()


def noise(count):
    return bytes(k * 37 & 255 for k in range(count))


def read(client, buffer, start, count):
    """Download, and what came."""
    target = bytearray(count)
    client.session.download(buffer, start, memoryview(target))
    return bytes(target)


def test_small_bytes_travel_in_the_message(client):
    data = noise(64)
    buffer = client.upload(data)
    assert client.sent() == [m.Upload(1, 1, 64, 0, data)]
    client.peer.then(m.Downloaded(1, data[8:24]))
    assert read(client, buffer, 8, 16) == data[8:24]
    assert client.sent() == [m.Download(2, 1, 1, 8, 16)]


def test_a_small_upload_leaves_with_the_run_that_uses_it(client):
    client.session.device_facts()
    x = client.session.upload(noise(16), 16)
    assert client.sent() == []
    client.record(NEG, x)
    client.session.cut()
    upload, _, run = client.sent()
    assert upload == m.Upload(1, 1, 16, 0, noise(16))
    assert (run.work, run.inputs) == (2, (1,))


def test_a_run_that_the_device_can_begin_with_waits_for_nothing(client):
    x = client.upload(noise(72 << 10))
    client.sent()
    client.record(NEG, x)
    client.session.upload(noise(16), 16)
    define, run, upload = client.sent()
    assert (type(define), run.work, upload.work) == (m.Define, 2, 3)


def test_a_few_small_ops_are_run_with_those_that_use_what_is_uploaded_after_them(client):
    x = client.upload()
    client.sent()
    first = client.record(NEG, x)
    y = client.session.upload(noise(16), 16)
    assert client.sent() == []
    client.record(NEG, y)
    client.session.cut()
    upload, _, run = client.sent()
    assert (upload.work, upload.buffer, run.work) == (2, y.id, 3)
    assert run.inputs == (x.id, y.id)
    assert first.id == run.first


def test_many_small_uploads_do_not_wait_for_ever(client):
    client.session.device_facts()
    for _ in range(5):
        client.session.upload(noise(16 << 10), 16 << 10)
    assert [each.work for each in client.sent()] == [1, 2, 3, 4, 5]
    client.session.upload(noise(16), 16)
    assert client.sent() == []


def test_bytes_that_were_read_whole_are_known_until_a_run_may_write_them(client):
    x = client.upload(noise(16))
    client.peer.then(m.Downloaded(1, noise(16)))
    assert read(client, x, 0, 16) == noise(16)
    client.record(NEG, x)
    client.sent()
    assert (read(client, x, 0, 16), read(client, x, 4, 4)) == (noise(16), noise(16)[4:8])
    assert client.sent() == []
    client.session.append(NEG_, [x], [0], (), [])
    client.peer.then(m.Downloaded(2, bytes(16)))
    assert read(client, x, 0, 16) == bytes(16)
    _, run, asked = client.sent()
    assert (type(run), type(asked)) == (m.Run, m.Download)


def test_when_a_told_value_comes_does_not_decide_where_the_log_is_cut():
    client = Client(CPU)
    x = client.upload()
    first = client.record(NEG, x)
    client.session.cut()
    client.peer.then(m.Downloaded(1, noise(16)))
    assert read(client, first, 0, 16) == noise(16)
    second = client.record(NEG, x)
    client.session.cut()
    client.peer.send(m.Value(second.id, noise(16)))
    client.session.poll()
    client.record(NEG, x)
    assert read(client, second, 0, 16) == noise(16)
    assert len(client.session.log.entries) == 0
    client.record(NEG, x)
    assert read(client, second, 0, 16) == noise(16)
    assert len(client.session.log.entries) == 1


def test_a_value_that_was_written_during_its_wait_is_not_known(client):
    x = client.upload(noise(16))
    client.peer.then(m.Downloaded(1, noise(16)))
    pump = client.session.connection.pump

    def interrupted(link, timeout_s=0.0):
        client.session.connection.pump = pump
        client.session.append(NEG_, [x], [0], (), [])  # as a handler of a signal may
        client.session.cut()
        pump(link, timeout_s)

    client.session.connection.pump = interrupted
    assert read(client, x, 0, 16) == noise(16)
    client.peer.then(m.Downloaded(2, bytes(16)))
    assert read(client, x, 0, 16) == bytes(16)


def test_a_forked_child_knows_nothing(client):
    x = client.upload(noise(16))
    client.peer.then(m.Downloaded(1, noise(16)))
    assert read(client, x, 0, 16) == noise(16)
    client.session.after_fork()
    with pytest.raises(RuntimeError, match="forked subprocess"):
        read(client, x, 0, 16)


def test_of_another_executor_nothing_is_known(client):
    x = client.upload(noise(16))
    client.peer.then(m.Downloaded(1, noise(16)))
    assert read(client, x, 0, 16) == noise(16)
    client.peer.send(m.Resync(1, lost=True, text="The device was restarted."))
    client.session.poll()
    again = client.upload(bytes(16))
    assert again.id == x.id
    client.peer.then(m.Downloaded(2, bytes(16)))
    assert read(client, again, 0, 16) == bytes(16)
    with pytest.raises(errors.JgpuError):
        read(client, x, 0, 16)


def test_large_bytes_travel_in_pieces_as_the_arena_has_room(client):
    data, arena, copied = noise(6 * PIECE + 100), None, bytearray()

    def copy_out():
        for each in client.sent():
            assert (each.buffer, each.size, each.data) == (1, len(data), None)
            assert each.offset == len(copied)
            copied.extend(arena.upload(each.arena, each.count))
        client.peer.send(m.Ack(arena.ring.reserved))

    client.session.device_facts()
    arena = client.links[-1].arena
    client.peer.then(copy_out, copy_out)
    client.upload(data)
    copy_out()
    client.session.poll()
    assert bytes(copied) == data
    assert arena.ring.released == arena.ring.reserved
    assert client.session.outbox.work == 7
    assert client.session.buffers.held.nbytes == len(data)


def test_large_bytes_come_back_through_the_other_half_piece_by_piece(client):
    data = noise(HALF + 1000)
    buffer = client.upload(bytes(16))
    buffer.nbytes = len(data)
    client.sent()
    arena = client.links[-1].arena

    def answer():
        (asked,) = client.sent()
        assert asked.arena == 0
        piece = data[asked.offset : asked.offset + asked.count]
        arena.download(0, asked.count)[:] = piece
        client.peer.send(m.Downloaded(asked.request))

    client.peer.then(answer, answer)
    assert read(client, buffer, 0, len(data)) == data


def interrupt():
    raise KeyboardInterrupt


def test_the_arena_is_not_read_into_while_an_interrupted_download_may_write_it(client):
    buffer = client.upload(bytes(16))
    client.sent()
    arena = client.links[-1].arena
    client.peer.then(interrupt)
    with pytest.raises(KeyboardInterrupt):
        read(client, buffer, 0, PIECE)
    asked, cancelled = client.sent()
    assert cancelled == m.Cancel(2)

    def answer_late():
        assert client.sent() == []  # nothing else is asked into the arena
        arena.download(0, PIECE)[:] = b"l" * PIECE
        client.peer.send(m.Downloaded(asked.request), m.Synced(2))

    def answer():
        (asked_anew,) = client.sent()
        arena.download(0, PIECE)[:] = b"n" * PIECE
        client.peer.send(m.Downloaded(asked_anew.request))

    client.peer.then(answer_late, answer)
    assert read(client, buffer, 0, PIECE) == b"n" * PIECE


def test_a_device_that_is_lost_between_two_pieces_ends_the_upload(client):
    client.session.device_facts()
    client.peer.hang_up()
    with pytest.raises(errors.DeviceLost, match="connection to the GPU broker ended"):
        client.upload(noise(2 * PIECE))
    assert client.links[0].is_closed
    assert client.upload().id == 1


def test_another_executor_between_two_pieces_ends_the_upload(client):
    client.session.device_facts()
    client.peer.send(m.Resync(1, lost=True, text="The device was restarted."))
    with pytest.raises(errors.DeviceLost, match="The device was restarted"):
        client.upload(noise(2 * PIECE))
    assert not client.links[0].is_closed
    assert client.upload().id == 1


def test_a_buffer_is_filled_in_place_of_the_op_that_makes_it(client):
    empty = client.session
    x = client.upload()
    client.sent()
    before = client.record(NEG, x)
    made = client.record(EMPTY)
    assert empty.log.is_just_made(made)
    assert client.session.fill(made, noise(16))
    define, run, upload = client.sent()
    assert isinstance(define, m.Define)
    assert (run.work, run.first, before.id) == (2, 2, 2)
    assert upload == m.Upload(3, 3, 16, 0, noise(16))
    assert len(empty.log) == 0
    other = client.record(EMPTY)
    client.record(NEG, other)
    assert not client.session.fill(other, noise(16))
    assert len(empty.log) == 2


def test_a_value_that_is_read_after_each_run_is_told_unasked():
    client = Client(CPU)
    x = client.upload()
    first = client.record(NEG, x)
    client.peer.then(m.Downloaded(1, noise(16)))
    assert read(client, first, 0, 16) == noise(16)
    client.sent()
    second = client.record(NEG, x)
    client.peer.then(m.Value(3, noise(16)))
    assert read(client, second, 4, 8) == noise(16)[4:12]
    assert read(client, second, 0, 16) == noise(16)
    (run,) = client.sent()
    assert (run.first, run.wanted) == (3, (0,))
    client.validate()
