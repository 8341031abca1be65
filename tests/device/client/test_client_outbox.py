"""What goes out, message by message: runs, numbers, what was forgotten, tags, seeds."""

import copy
import gc
import pickle
import weakref

import pytest
import torch
from lesson import ADD, NEG, Client

from jgpu import errors
from jgpu.device.client import oplog, outbox
from jgpu.device.client.connection import ConnectionPhase
from jgpu.device.client.oplog import JOINTED, PIECES
from jgpu.device.tensor import BufferHandle
from jgpu.wire import limits
from jgpu.wire import messages as m
from jgpu.wire import program as wire


@pytest.fixture
def client():
    made = Client()
    yield made
    made.validate()


def runs(messages):
    return [each for each in messages if isinstance(each, m.Run)]


def test_a_program_is_defined_once_and_run_each_time(client):
    x = client.upload()
    made = [client.record(NEG, x)]
    client.session.cut()
    made.append(client.record(NEG, x))
    client.session.cut()
    upload, define, first, second = client.sent()
    assert upload == m.Upload(1, 1, 16, 0, bytes(16))
    assert isinstance(define, m.Define)
    (compiled,) = client.session.outbox.recorder.by_hash.values()
    assert define.program == compiled.data
    assert first == m.Run(2, compiled.hash, (1,), 2, live=b"\x01")
    assert second == m.Run(3, compiled.hash, (1,), 3, live=b"\x01")
    assert [each.id for each in made] == [2, 3]


def test_a_run_says_what_was_forgotten_since_the_last_one(client):
    x, y, z = (client.upload() for _ in range(3))
    client.sent()
    first = client.record(NEG, x)
    second = client.record(ADD, first, y)
    del first, y, z
    client.session.cut()
    _, run = client.sent()
    assert run.inputs == (1, 2)
    assert (run.first, run.live, run.dead, run.free) == (4, b"\x02", b"\x02", (3,))
    assert client.session.buffers.held.nbytes == x.nbytes + second.nbytes
    del second, x
    client.session.release()
    assert client.sent() == [m.Free((5, 1))]
    assert len(client.session.buffers.held) == 0
    client.session.release()
    assert client.sent() == []


def test_more_buffers_than_one_message_names_are_freed_by_several_before_the_run(client):
    x, y = client.upload(), client.upload()
    client.record(NEG, x)
    client.sent()
    forgotten = tuple(range(10, 10 + limits.MAX_SLOTS + 3))
    client.session.buffers.graveyard.extend(forgotten)
    del y
    client.session.cut()
    *before, run = client.sent()
    frees = [each for each in before if isinstance(each, m.Free)]
    assert isinstance(run, m.Run)
    assert run.free == ()
    freed = [number for each in frees for number in each.buffers]
    assert freed == [*forgotten, 2]
    assert max(len(each.buffers) for each in frees) <= limits.MAX_SLOTS


def test_more_resident_buffers_than_one_message_names_are_tagged_by_several(client):
    x = client.upload()
    graveyard = client.session.buffers.graveyard
    handles = [BufferHandle(4, graveyard, number) for number in range(2, limits.MAX_SLOTS + 9)]
    client.session.outbox.tag_resident(handles)
    client.sent()
    client.record(NEG, x)
    client.session.cut()
    tags = [each for each in client.sent() if isinstance(each, m.Tag)]
    assert [number for each in tags for number in each.buffers] == [each.id for each in handles]
    assert max(len(each.buffers) for each in tags) == limits.MAX_SLOTS


def test_what_only_a_weak_reference_shows_is_not_needed(client):
    x = client.upload()
    client.sent()
    made = client.record(NEG, x)
    weak = weakref.ref(made)
    del made
    client.session.cut()
    _, run = client.sent()
    assert (run.live, weak()) == (b"\x00", None)
    client.session.release()
    assert client.sent() == [], "the run itself has said that it is not needed"


def test_what_a_circle_of_references_holds_is_freed_with_it(client):
    x = client.upload()
    made = [client.record(NEG, x)]
    made.append(made)
    del x
    client.session.cut()
    *_, run = client.sent()
    assert run.live == b"\x01"
    del made
    gc.collect()
    client.session.release()
    assert client.sent() == [m.Free((2,))]


def test_what_is_forgotten_while_the_run_is_numbered_is_not_needed(client):
    x = client.upload()
    made = [client.record(NEG, x), client.record(NEG, x)]
    client.session.outbox.cut(report=lambda work: made.pop(0))
    *_, run = client.sent()
    assert (run.live, run.free) == (b"\x02", ())
    assert [each.id for each in made] == [3]
    client.session.release()
    assert client.sent() == []


def test_a_finalizer_that_takes_hold_again_loses_nothing(client):
    x = client.upload()
    kept = []

    class Holder:
        def __init__(self, buffer):
            self.buffer = buffer

        def __del__(self):
            kept.append(self.buffer)

    Holder(client.record(NEG, x))
    client.session.cut()
    *_, run = client.sent()
    assert (run.live, kept[0].id) == (b"\x01", 2)
    kept.clear()
    client.session.release()
    assert client.sent() == [m.Free((2,))]


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, pickle.dumps])
def test_a_storage_that_the_executor_counts_cannot_be_doubled(client, copied):
    with pytest.raises(TypeError, match="one storage on the device"):
        copied(client.upload())


def test_pieces_grow_until_a_boundary(client):
    x = client.upload()
    for size in (*PIECES, PIECES[-1]):
        for _ in range(size - 1):
            client.record(NEG, x)
        assert runs(client.sent()) == []
        client.record(NEG, x)
        (run,) = runs(client.sent())
        assert (len(run.live) * 8 >= size, run.ends_iteration) == (True, False)
    client.session.progress.boundary()
    assert client.sent() == [m.IterationEnded()]
    client.session.progress.boundary()
    assert client.sent() == []
    for _ in range(PIECES[0]):
        client.record(NEG, x)
    assert len(runs(client.sent())) == 1
    client.record(NEG, x)
    client.session.progress.boundary()
    assert [run.ends_iteration for run in runs(client.sent())] == [True]
    for _ in range(PIECES[0]):
        client.record(NEG, x)
    assert len(runs(client.sent())) == 1
    client.upload()  # what was sent before it is done soon: the device waits for more
    for _ in range(PIECES[0]):
        client.record(NEG, x)
    assert len(runs(client.sent())) == 1


@pytest.mark.parametrize(("more", "first"), [(0, 16), (1, 32)])
def test_a_first_piece_that_moves_many_bytes_is_sent_half_full(client, monkeypatch, more, first):
    x = client.upload()
    monkeypatch.setattr(oplog, "_MUCH_BYTES", 16 * 2 * x.nbytes + more)  # each op reads and writes
    for _ in range(2):
        for size in (first, PIECES[1]):
            for _ in range(size - 1):
                client.record(NEG, x)
            assert runs(client.sent()) == []
            client.record(NEG, x)
            assert len(runs(client.sent())) == 1
        client.session.progress.boundary()
        client.sent()


@pytest.mark.parametrize("cell", [2, 7, 11, 30])
def test_a_chain_that_repeats_has_one_program_wherever_it_begins(cell):
    """A cell of so many ops, begun after each number of other ops."""
    programs = set()
    for before in range(40):
        client = Client()
        h = x = client.upload()
        for _ in range(before):
            x = client.record(NEG, x)
        for k in range(800):
            h = client.record(NEG, h) if k % cell else client.record(ADD, h, x)
        client.session.progress.boundary()
        found = [run.program for run in runs(client.sent())]
        programs.update(found[len(PIECES) : -1])
        assert len(found) <= len(PIECES) + 800 // (2 * PIECES[-1] // 3)
        client.validate()
    assert len(programs) == 1


def test_a_piece_is_cut_short_by_a_third_at_most(client):
    x = client.upload()
    sizes = []
    for k in range(3000):
        x = client.record(ADD, x, x) if (k * k) % 7 == 1 else client.record(NEG, x)
        sizes += [k + 1 - len(client.session.log) for _ in runs(client.sent())]
    pieces = [at - before for before, at in zip([0, *sizes], sizes, strict=False)]
    whole = sum(size < JOINTED for size in PIECES)
    assert tuple(pieces[:whole]) == PIECES[:whole]
    upcoming = [*PIECES[whole:], *[PIECES[-1]] * len(pieces)]
    jointed = list(zip(pieces[whole:], upcoming, strict=False))
    assert len(jointed) > 10
    assert all(2 * most // 3 <= piece <= most for piece, most in jointed)


def test_tags_go_before_what_follows_them(client):
    x, y = client.upload(), client.upload()
    client.sent()
    client.session.tag_resident([x])
    client.session.tag_resident([x])
    made = client.record(NEG, x)
    client.session.tag_resident([made])  # which has to be known to be tagged
    assert [type(each) for each in client.sent()] == [m.Define, m.Tag, m.Run]
    client.session.tag_resident([y])
    client.session.notify(m.CellEnded())
    assert client.sent() == [m.Tag((3, 2), m.RESIDENT), m.CellEnded()]


def test_seeds_wait_for_a_connection_and_come_first():
    client = Client()
    client.session.seed(0, 5)
    client.session.seed(3, 6)
    client.session.seed(0, 7)
    assert client.links == []
    client.upload()
    assert client.sent()[:2] == [m.Seed(1, 7, 0), m.Seed(2, 6, 3)]
    client.session.seed(1, 8)
    assert client.sent() == [m.Seed(4, 8, 1)]


@pytest.fixture
def out_of_reach(monkeypatch):
    """A client that finds no broker, with one op recorded."""
    client = Client()

    def unreachable():
        raise errors.BrokerUnreachable("There is no broker.")

    monkeypatch.setattr(client.session.connection, "_connect", unreachable)
    made = BufferHandle(16, client.session.buffers.graveyard)
    return client, client.record(NEG, made)


def test_a_switch_that_stays_as_it_is_needs_no_broker(out_of_reach):
    client, made = out_of_reach
    assert client.session.cut_around(lambda: 5) == 5
    assert len(client.session.log) == 1
    assert made.graveyard is client.session.buffers.graveyard


def test_a_switch_is_set_where_there_is_no_broker_and_nothing_runs_under_it(out_of_reach):
    client, made = out_of_reach
    before = torch.get_default_dtype()
    try:
        with pytest.raises(errors.BrokerUnreachable):
            client.session.cut_around(lambda: torch.set_default_dtype(torch.float64))
        assert torch.get_default_dtype() is torch.float64
        assert len(client.session.log) == 0
        assert made.graveyard is not client.session.buffers.graveyard  # lost, and told where used
        assert "switches" in client.session.connection.why_lost
        # with nothing recorded it is set back at once
        client.session.cut_around(lambda: torch.set_default_dtype(before))
    finally:
        torch.set_default_dtype(before)


@pytest.mark.parametrize("broker", [True, False])
def test_a_switch_is_set_though_something_else_is_told_on_its_line(
    out_of_reach, broker, monkeypatch
):
    client = Client() if broker else out_of_reach[0]
    session, before = client.session, torch.get_default_dtype()
    if broker:
        client.record(NEG, client.upload())
        client.sent()

    def kept():
        raise KeyboardInterrupt

    monkeypatch.setattr(outbox, "raise_kept", kept)
    expected = KeyboardInterrupt if broker else errors.BrokerUnreachable
    try:
        with pytest.raises(expected):
            session.cut_around(lambda: torch.set_default_dtype(torch.float64))
        assert torch.get_default_dtype() is torch.float64
        assert len(session.log) == 0
    finally:
        torch.set_default_dtype(before)
    if broker:
        (run,) = runs(client.sent())
        compiled = session.outbox.recorder.by_hash[run.program]
        assert wire.decode_program(compiled.data).flags.default_dtype == "float32"


def test_nothing_connects_that_does_not_need_to():
    client = Client()
    session = client.session
    session.release()
    session.notify(m.CellStarted("1"))
    session.progress.boundary()
    session.synchronize()
    session.progress.finish_cell(None)
    session.poll()
    session.close()
    assert client.links == []
    assert session.settled
    assert session.connection.phase is ConnectionPhase.UNUSED


def test_a_program_that_the_broker_forgot_is_defined_again(client):
    x = client.upload()
    kept = client.record(NEG, x)
    client.session.cut()
    define, run = client.sent()[1:]
    client.peer.send(m.DefinitionUnknown(run.work, run.program))
    client.session.poll()
    client.session.notify(m.CellEnded())
    assert client.sent() == [define, m.CellEnded()]
    failure = m.Failed(2, 0, "", "IndexError", "Not heard any more.", ())
    client.peer.send(m.DefinitionUnknown(9, bytes(16)), failure)
    client.session.poll()
    assert client.session.connection.phase is ConnectionPhase.LOST
    assert client.session.requests.failures == []
    with pytest.raises(errors.DeviceLost, match="forgot a program that is needed again"):
        client.session.download(kept, 0, memoryview(bytearray(16)))


def test_another_connection_numbers_anew_and_frees_nothing_of_the_last(client):
    x = client.upload()
    kept = client.record(NEG, x)
    client.session.cut()
    waiting = client.record(NEG, x)
    client.session.tag_resident([x])
    client.session.connection.lost(errors.DeviceLost("It is gone."))
    assert (len(client.session.log), waiting.id) == (0, 0)
    y = client.upload()
    made = client.record(NEG, y)
    del x, kept
    client.session.cut()
    upload, define, run = client.sent()
    assert upload == m.Upload(1, 1, 16, 0, bytes(16))
    assert isinstance(define, m.Define)
    assert run == m.Run(2, run.program, (1,), 2, live=b"\x01")
    assert (y.id, made.id) == (1, 2)


def test_what_the_executor_says_is_taken_in_while_nobody_waits(client):
    x = client.upload()
    client.peer.send(m.Failed(1, 0, "", "IndexError", "Out of range.", (1,)))
    for _ in range(6):
        client.record(NEG, x)
        client.session.cut()
        assert client.session.buffers.poisoned == {}
    client.record(NEG, x)
    assert client.session.cut() == 8
    assert list(client.session.buffers.poisoned) == [1]


def test_a_full_socket_keeps_the_order(client):
    x = client.upload()
    client.sent()
    client.peer.takes = 10
    made = [client.record(NEG, x)]
    client.session.cut()
    made.append(client.record(NEG, x))
    client.session.cut()
    assert [each.work for each in runs(client.sent())] == [2, 3]


def test_storages_change_places_and_stay_tagged(client):
    x, y = client.upload(), client.upload(bytes(32))
    client.session.tag_resident([x])
    client.session.notify(m.CellEnded())
    client.sent()
    client.session.exchange(x, y)
    assert ((x.id, x.nbytes), (y.id, y.nbytes)) == ((2, 32), (1, 16))
    client.session.notify(m.CellEnded())
    assert client.sent() == [m.Tag((2,), m.RESIDENT), m.CellEnded()]


def test_bytes_that_live_are_counted_once_sent_or_not(client):
    session = client.session
    x, y = client.upload(), client.upload()
    made = client.record(NEG, x)
    assert session.living_bytes([made]) == 48
    del y
    assert session.living_bytes([]) == 32
    session.cut()
    assert session.living_bytes([made]) == 32
