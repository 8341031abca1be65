"""Programs run in order, share definitions, fail with poison, and are taken back."""

import time
from struct import pack, unpack

import pytest
from client import (
    DEADLINE_S,
    Executor,
    add,
    add_in_place,
    bad_index,
    chain,
    matmul,
    scale,
    vector,
)

from jgpu.wire import messages as m
from jgpu.wire.program import Geometry, Op, Out, Slot, encode_program, program_hash

#: seconds of work in one `slow` program are about 0.05 on a slow core
SLOW = matmul(512, ops=20)


def slow_source(client):
    return client.upload_arena(bytes(4 * 512 * 512))


def test_a_program_runs(connect):
    client = connect()
    total = client.run(add(), [client.floats(1, 2, 3, 4), client.floats(10, 20, 30, 40)])
    assert client.read_floats(total, 4) == (11, 22, 33, 44)


def test_parameters_are_given_anew_at_each_run(connect):
    client = connect()
    source = client.floats(1, 2, 3, 4)
    doubled = client.run(scale(), [source], (2.0,))
    halved = client.run(scale(), [source], (0.5,))
    assert client.read_floats(doubled, 4) == (2, 4, 6, 8)
    assert client.read_floats(halved, 4) == (0.5, 1, 1.5, 2)


def test_works_run_in_the_order_in_which_they_were_sent(connect):
    client = connect()
    total = client.floats(0, 0, 0, 0)
    for k in range(100):
        step = client.floats(k, 0, 0, 0)
        client.run(add_in_place(), [total, step], dead=b"\x02")
        if k % 10 == 0:
            assert client.read_floats(total, 4)[0] == k * (k + 1) / 2
    assert client.read_floats(total, 4)[0] == 4950
    assert client.memory().used == 16


def test_what_is_not_live_is_not_kept(connect):
    client = connect()
    source = client.floats(1, 1, 1, 1)
    first = client.run(chain(4, 8), [source], live=b"\x80")
    assert client.read_floats(first + 7, 4)[0] == 256
    assert client.memory().used == 32


def test_a_run_may_free_before_and_drop_after(connect):
    client = connect()
    unused, source = client.floats(0, 0, 0, 0), client.floats(1, 1, 1, 1)
    client.run(scale(), [source], (3.0,), dead=b"\x01", free=(unused,))
    client.sync()
    assert client.memory().used == 16


def test_null_runs_shapes(null):
    client = null.connect()
    total = client.run(add(), [client.floats(1, 2, 3, 4), client.floats(1, 2, 3, 4)])
    assert client.read_floats(total, 4) == (0, 0, 0, 0)
    assert client.memory().used == 48
    client.close()
    null.ended(client.session)


def test_definitions_are_shared_by_all_sessions(connect):
    one, other = connect("user1"), connect("user2")
    program = chain(7, 3)
    one.define(program)
    one.sync()
    one.run(program, [one.upload(bytes(28))])
    one.sync()
    other.defined.add(program_hash(encode_program(program)))
    first = other.run(program, [other.upload(pack("7f", *[1] * 7))])
    assert other.read_floats(first + 2, 7)[0] == 8
    assert not other.unknown


def test_an_unknown_definition_is_asked_for_and_everything_after_it_waits(connect):
    client = connect()
    program = chain(9, 2)
    source = client.upload(pack("9f", *[1] * 9))
    client.defined.add(program_hash(encode_program(program)))
    first = client.run(program, [source])
    work = client.work
    request = client.ask(first + 1, 36)
    unknown = client.receive(m.DefinitionUnknown)
    assert (unknown.work, unknown.program) == (work, program_hash(encode_program(program)))
    client.send(m.Define(encode_program(program)))
    assert unpack("9f", client.reply(request).data)[0] == 4


@pytest.mark.parametrize("again", [False, True])
def test_the_run_of_an_unknown_definition_may_be_sent_again(connect, again):
    client = connect()
    program = chain(11 + again, 2)
    source = client.upload(bytes(4 * (11 + again)))
    data = encode_program(program)
    run = m.Run(client.next_work(), program_hash(data), (source,), 50, b"\x03")
    client.send(run)
    client.receive(m.DefinitionUnknown)
    client.send(m.Define(data))
    if again:
        client.send(run)
    assert client.sync()
    assert client.memory().used == 3 * 4 * (11 + again)


def test_a_bad_definition_fails_and_so_do_its_runs(connect):
    client = connect()
    bad = add()
    bad = type(bad)(
        2,
        (),
        bad.geometries,
        bad.views,
        (Op("aten::from_file", (Slot(0, 0),), {}, (Out(2, 0),)),),
    )
    source = client.floats(1, 2, 3, 4)
    total = client.run(bad, [source, source])
    reply = client.download(total, 16)
    assert reply.error == "ProgramError"
    (failure,) = client.failures
    assert (failure.error, failure.op, failure.name) == ("ProgramError", 0, "aten::from_file")
    assert failure.buffers == (total,)
    assert client.read_floats(source, 4) == (1, 2, 3, 4)


def test_a_failure_is_reported_once_and_poisons_what_used_it(connect):
    client = connect()
    source = client.floats(1, 2, 3, 4)
    index = client.upload(pack("4q", 0, 1, 2, 99))
    picked = client.run(bad_index(), [source, index])
    work = client.work
    total = client.run(add(), [source, picked])
    client.sync()
    (failure,) = client.failures
    assert (failure.work, failure.op, failure.error) == (work, 0, "IndexError")
    assert failure.name.startswith("aten::index_select")
    assert failure.buffers == (picked,)
    for poisoned in (picked, total):
        assert client.download(poisoned, 16).error == "IndexError"
    assert len(client.failures) == 1
    assert client.read_floats(source, 4) == (1, 2, 3, 4)


def test_a_program_over_buffers_that_are_too_small_fails(connect):
    client = connect()
    small = client.floats(1, 2)
    total = client.run(add(), [small, small])
    assert client.download(total, 16).error == "ProgramError"
    assert client.read_floats(small, 2) == (1, 2)


def test_learnt_geometry_comes_with_a_report(connect):
    client = connect()
    source = client.floats(1, 2, 3, 4)
    client.run(add(), [source, source], report=True)
    learnt = client.receive(m.Learnt)
    assert learnt.tensors[0].geometry == vector(4)


def test_a_probe_tells_what_an_op_returns(connect):
    client = connect()
    request = client.next_request()
    op = Op("aten::mm.default", (Slot(0, 0), Slot(1, 1)), {}, ())
    square = Geometry("float32", (3, 3), (3, 1))
    client.send(m.Probe(request, op, (square, square)))
    assert client.reply(request).outputs == (square,)
    request = client.next_request()
    client.send(m.Probe(request, op, (square, vector(4))))
    kind, text = client.reply(request).error
    assert kind
    assert text


# -- memory ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def small():
    """An executor with a capacity of 8 MiB."""
    with Executor("cpu", lanes=2, threads=1, capacity=8 << 20) as executor:
        yield executor


def test_what_can_never_fit_fails_as_out_of_memory(small):
    client = small.connect()
    whole = client.new()
    client.send(m.Upload(client.next_work(), whole, 9 << 20, 0, data=b"1"))
    reply = client.download(whole, 1)
    assert reply.error == "OutOfMemoryError"
    assert "9.00 MiB" in reply.text
    source = client.upload_arena(bytes(3 << 20))
    program = chain((3 << 20) // 4, 3)
    first = client.run(program, [source])
    assert client.download(first, 4) == bytes(4)
    for behind in (first + 1, first + 2):
        assert client.download(behind, 4).error == "OutOfMemoryError"
    assert client.download(source, 4) == bytes(4)
    client.close()
    small.ended(client.session)


def test_a_users_limit_counts_all_their_sessions(small):
    one = small.connect("user1", limit=2 << 20)
    other = small.connect("user1", limit=2 << 20)
    one.upload_arena(bytes(1 << 20))
    one.sync()
    second = other.upload_arena(bytes(3 << 19))
    assert other.download(second, 4).error == "OutOfMemoryError"
    assert other.memory().total == 2 << 20
    for client in (one, other):
        client.close()
        small.ended(client.session)


def test_what_does_not_fit_now_waits_and_says_for_whom(small):
    one, other = small.connect("user1"), small.connect("user2")
    held = one.upload_arena(bytes(6 << 20))
    one.sync()
    wanted = other.new()
    other.send(m.Upload(other.next_work(), wanted, 4 << 20, 0, data=b"abcd"))
    request = other.ask(wanted, 4)
    waiting = other.receive(m.Waiting)
    assert waiting.waits_for == ("user1",)
    (report,) = [s for s in small.report().sessions if s.id == other.session]
    assert (report.state, report.waits_for) == ("waiting", ("user1",))
    assert report.waits_on == "memory"
    one.send(m.Free((held,)))
    assert other.reply(request).data == b"abcd"
    for client in (one, other):
        client.close()
        small.ended(client.session)


# -- turns, cancel, back-pressure --------------------------------------------------------------


def test_cancel_stops_what_runs_and_takes_back_what_has_not_started(connect):
    client = connect()
    source = slow_source(client)
    last = b"\x00\x00\x08"
    client.run(SLOW, [source], live=b"")
    client.sync()
    firsts = [client.run(SLOW, [source], live=last, ends_iteration=True) for _ in range(40)]
    small = client.upload(b"abcd")
    request = client.ask(small, 4)
    done = client.cancel()
    assert client.reply(request).error == "WorkCancelled"
    assert client.reply(done)
    cancelled = [failure for failure in client.failures if failure.error == "WorkCancelled"]
    poisoned = {number for failure in cancelled for number in failure.buffers}
    assert {small, *(first + 19 for first in firsts[1:])} <= poisoned
    assert client.download(small, 4).error == "WorkCancelled"
    assert client.download(client.upload(b"wxyz"), 4) == b"wxyz"
    again = client.run(SLOW, [source], live=last)
    assert len(client.download(again + 19, 64)) == 64


def test_cancel_with_nothing_queued_is_answered(connect):
    client = connect()
    assert client.reply(client.cancel())
    assert not client.failures


def test_an_iteration_that_has_changed_the_model_is_finished(connect):
    client = connect()
    source = slow_source(client)
    total = client.floats(0, 0, 0, 0)
    one = client.floats(1, 1, 1, 1)
    client.send(m.Tag((total,), m.RESIDENT))
    client.run(SLOW, [source], live=b"")
    client.sync()
    client.run(add_in_place(), [total, one])
    client.send(m.Sync(client.next_work(), client.next_request(), ends_iteration=False))
    client.reply(client.request)
    client.run(SLOW, [source], live=b"\x00\x00\x08")
    client.run(add_in_place(), [total, one], ends_iteration=True)
    client.run(SLOW, [source], live=b"\x00\x00\x08", ends_iteration=True)
    client.run(add_in_place(), [total, one], ends_iteration=True)
    done = client.cancel()
    assert client.reply(done)
    assert client.read_floats(total, 4)[0] == 2


def test_a_long_queue_is_not_read_to_its_end_but_finished(connect):
    client = connect()
    total, one = client.floats(0, 0, 0, 0), client.floats(1, 0, 0, 0)
    key = client.define(add_in_place())
    count = 20_000
    client.socket.settimeout(60)
    runs = [m.Run(client.next_work(), key, (total, one), client.new(), b"") for _ in range(count)]
    for start in range(0, count, 1000):
        client.send_all(runs[start : start + 1000])
    client.socket.settimeout(None)
    assert client.read_floats(total, 4)[0] == count


def test_users_take_turns(cpu, connect):
    one, other = connect("user1"), connect("user2")
    sources = [slow_source(client) for client in (one, other)]
    one.sync()
    other.sync()
    for client, source in zip((one, other), sources, strict=True):
        for _ in range(10):
            client.run(SLOW, [source], live=b"", ends_iteration=True)
    one.sync()
    other.sync()
    seconds = {s.id: s.device_seconds for s in cpu.report().sessions}
    assert seconds[one.session] == pytest.approx(seconds[other.session], rel=0.6)


def test_a_short_work_is_served_while_another_user_queues_long_ones(cpu, connect):
    busy, quick = connect("user1"), connect("user2")
    source = slow_source(busy)
    busy.sync()
    for _ in range(60):
        busy.run(SLOW, [source], live=b"", ends_iteration=True)
    last = busy.next_request()
    busy.send(m.Sync(busy.next_work(), last))
    for k in range(5):
        assert quick.read_floats(quick.floats(k, 0, 0, 0), 4)[0] == k
    assert not busy.inbox
    busy.reply(last)


def test_a_session_that_ends_with_work_queued_leaves_nothing(cpu):
    client = cpu.connect()
    source = slow_source(client)
    for _ in range(50):
        client.run(SLOW, [source], ends_iteration=True)
    client.socket.close()
    client.duplicate.close()
    assert cpu.ended(client.session).text == ""
    assert client.session not in [s.id for s in cpu.report().sessions]


def test_wanted_values_are_told_when_the_run_is_over(connect):
    client = connect()
    source = client.floats(1, 2, 3, 4)
    first = client.run(chain(4, 3), [source], live=b"\x06", wanted=(1, 2))
    for k in (1, 2):
        told = client.receive(m.Value)
        assert told.buffer == first + k
        assert unpack("4f", told.data) == tuple(2.0 ** (k + 1) * x for x in (1, 2, 3, 4))


def test_a_wanted_value_that_cannot_be_told_has_to_be_asked_for(connect):
    client = connect()
    large = client.run(add(64), [client.upload(bytes(256)), client.upload(bytes(256))], wanted=(0,))
    assert client.receive(m.Value) == m.Value(large, b"")
    index = client.upload(pack("q", 99))
    lost = client.run(bad_index(), [client.floats(1, 2, 3, 4), index], wanted=(0,))
    assert client.receive(m.Failed).buffers == (lost,)
    assert client.receive(m.Value) == m.Value(lost, b"")
    # of a buffer that is none of the run's, and of none at all
    client.run(add(), [client.floats(1, 1, 1, 1)] * 2, live=b"\x00", wanted=(0, 7))
    assert client.receive(m.Value).data == b""
    assert client.receive(m.Value).data == b""
    client.sync()


# -- the end of a program in its midst ------------------------------------------------------------

#: one op takes a second or so
LARGE, LARGE_BYTES = 2600, 4 * 2600 * 2600


@pytest.fixture
def long(cpu, connect):
    """A session with 54 MB, and a program of twelve long ops, the first of which is under way."""
    client = connect(arena=128 << 20)
    _, source = (client.upload_arena(bytes(LARGE_BYTES)) for _ in range(2))
    client.sync()
    client.run(matmul(LARGE, ops=12), [source], live=b"", ends_iteration=True)
    deadline = time.monotonic() + DEADLINE_S
    while not ops_begun(cpu, client):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return client


def ops_begun(cpu, client):
    """How many ops of its program a session has begun, by the flight page."""
    entries = [each for each in cpu.page.entries() if each.session == client.session]
    return max((each.op + 1 for each in entries if each.ops == 12), default=0)


@pytest.mark.slow
def test_a_cancelled_program_ends_at_its_next_op_and_neighbours_wait_no_longer(connect, long):
    client = long
    others = [connect("user2"), connect("user3")]
    done = client.cancel()
    for other in others:
        assert other.read_floats(other.run(scale(), [other.floats(1, 2, 3, 4)], (2.0,)), 4)
    assert client.reply(done)
    assert [failure.error for failure in client.failures] == ["WorkCancelled"]
    assert client.failures[0].op < 8


@pytest.mark.slow
def test_of_a_session_that_is_gone_only_what_the_op_uses_is_held_until_it_ends(cpu, long):
    client = long
    before = cpu.report().used
    client.close()
    freed = set()
    while True:
        used = cpu.report().used
        if any(isinstance(n, m.SessionEnded) and n.session == client.session for n in cpu.notices):
            break
        freed.add(before - used)
    # Nothing before the end was noticed; all but one matrix, or all where the op is the second.
    assert freed - {0} <= {LARGE_BYTES, 2 * LARGE_BYTES}
    assert freed - {0}
    assert ops_begun(cpu, client) < 9
