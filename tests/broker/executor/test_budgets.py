"""Users beyond their limits: what an executor refuses, what it says, and what stays."""

import pytest
from client import add, add_in_place, matmul, scale

from jgpu.wire import messages as m

TEXT = "user1 has used 12 of 10 device-seconds."


@pytest.fixture
def user(cpu, request):
    """A user of the test's own, who may do anything again afterwards."""
    name = request.node.name[:60]
    yield name
    cpu.control.send(m.SetUser(name))


def refuse(cpu, client, text=TEXT):
    """The user's work is refused from here on; what was sent before is over."""
    client.sync()
    cpu.control.send(m.SetUser(client.user, refusal=text))
    cpu.report()


@pytest.fixture
def session(connect, user):
    client = connect(user)
    client.user = user
    return client


def test_new_work_is_refused_with_the_sentence_and_told_once_until_the_client_waits(cpu, session):
    a, b = session.floats(1.0, 2.0, 3.0, 4.0), session.floats(1.0, 1.0, 1.0, 1.0)
    refuse(cpu, session)
    first = session.run(add(), [a, b])
    second = session.run(add(), [first, b])
    failure = session.download(second, 16)
    assert (failure.error, failure.text) == ("BudgetExceeded", TEXT)
    assert [(f.error, f.text, f.buffers) for f in session.failures] == [
        ("BudgetExceeded", TEXT, (first,))
    ]
    third = session.run(add(), [a, b])
    session.sync()
    assert [f.buffers for f in session.failures] == [(first,), (third,)]


def test_what_is_on_the_device_stays_and_can_be_read_while_work_is_refused(cpu, session):
    a, b = session.floats(1.0, 2.0, 3.0, 4.0), session.floats(1.0, 1.0, 1.0, 1.0)
    session.run(add_in_place(), [a, b], live=b"", ends_iteration=True)
    refuse(cpu, session)
    session.run(add_in_place(), [a, b], live=b"", ends_iteration=True)
    assert session.read_floats(a, 4) == (2.0, 3.0, 4.0, 5.0)
    later = session.floats(9.0)
    assert session.read_floats(later, 1) == (9.0,)
    cpu.control.send(m.SetUser(session.user))
    cpu.report()
    session.run(add_in_place(), [a, b], live=b"", ends_iteration=True)
    assert session.read_floats(a, 4) == (3.0, 4.0, 5.0, 6.0)


def test_an_iteration_that_has_begun_is_finished_and_one_that_was_refused_is_refused_whole(
    cpu, session
):
    a, b = session.floats(1.0, 2.0, 3.0, 4.0), session.floats(1.0, 1.0, 1.0, 1.0)
    session.run(add_in_place(), [a, b], live=b"")
    session.memory()
    cpu.control.send(m.SetUser(session.user, refusal=TEXT))
    cpu.report()
    session.run(add_in_place(), [a, b], live=b"", ends_iteration=True)
    assert session.read_floats(a, 4) == (3.0, 4.0, 5.0, 6.0)
    session.run(add_in_place(), [a, b], live=b"")
    session.memory()
    cpu.control.send(m.SetUser(session.user))
    cpu.report()
    session.run(add_in_place(), [a, b], live=b"", ends_iteration=True)
    session.sync()
    assert session.read_floats(a, 4) == (3.0, 4.0, 5.0, 6.0)
    session.run(add_in_place(), [a, b], live=b"", ends_iteration=True)
    assert session.read_floats(a, 4) == (4.0, 5.0, 6.0, 7.0)


def test_an_iteration_that_never_ends_is_refused_in_its_midst(cpu, session):
    a = session.floats(1.0, 1.0, 1.0, 1.0)
    session.run(scale(), [a], (1.0,))
    session.memory()
    cpu.control.send(m.SetUser(session.user, refusal=TEXT))
    cpu.report()
    for _ in range(1200):
        session.run(scale(), [a], (1.0,), live=b"\0")
    session.sync()
    assert [failure.text for failure in session.failures] == [TEXT]


def test_a_run_that_is_waited_for_is_always_answered(cpu, session):
    a, b = session.floats(1.0, 2.0, 3.0, 4.0), session.floats(1.0, 1.0, 1.0, 1.0)
    refuse(cpu, session)
    session.run(add(), [a, b])
    session.run(add(), [a, b], report=True)
    session.sync()
    assert len(session.failures) == 2


def test_refused_work_costs_the_user_nothing(cpu, session):
    square = session.upload(bytes(4 * 512 * 512))

    def charged(runs):
        """What the next runs cost, in seconds."""
        before = device_seconds(cpu, session)
        for _ in range(runs):
            session.run(matmul(ops=8), [square], ends_iteration=True, live=b"\0")
        session.sync()
        return device_seconds(cpu, session) - before

    charged(1)  # the first of all is slower
    each = charged(5) / 5
    refuse(cpu, session)
    assert charged(50) / 50 < each / 4  # what looking at it takes


def device_seconds(cpu, session):
    return next(r.device_seconds for r in cpu.report().sessions if r.id == session.session)


def test_other_users_are_not_concerned(cpu, connect, session):
    refuse(cpu, session)
    other = connect("user2")
    a = other.floats(1.0, 2.0, 3.0, 4.0)
    assert other.read_floats(other.run(scale(), [a], (2.0,)), 4) == (2.0, 4.0, 6.0, 8.0)


def test_what_was_set_for_a_user_holds_for_sessions_that_come_later(cpu, connect, user):
    cpu.control.send(m.SetUser(user, refusal=TEXT, limit=1 << 20))
    client = connect(user, limit=1 << 20)
    a = client.floats(1.0, 2.0, 3.0, 4.0)
    assert client.download(client.run(scale(), [a], (2.0,)), 16).text == TEXT
    assert client.memory().total == 1 << 20


def test_a_limit_that_changes_counts_for_what_is_asked_for_next(cpu, session):
    assert session.memory().total == 1 << 30
    cpu.control.send(m.SetUser(session.user, limit=4096))
    cpu.report()
    assert session.memory().total == 4096
    kept = session.floats(1.0, 2.0, 3.0, 4.0)
    square = session.upload(bytes(2048))
    large = session.upload(bytes(4096))
    assert session.download(large, 4).error == "OutOfMemoryError"
    assert session.read_floats(kept, 4) == (1.0, 2.0, 3.0, 4.0)
    assert square


def test_below_a_lowered_limit_what_exists_is_read_and_written_in_place(cpu, session):
    a, b = session.floats(1.0, 2.0, 3.0, 4.0), session.floats(1.0, 1.0, 1.0, 1.0)
    square = session.upload(bytes(range(256)) * 16)
    session.sync()
    cpu.control.send(m.SetUser(session.user, limit=16, resident_limit=8))
    assert session.receive(m.Ready).limit == 16
    session.run(add_in_place(), [a, b], live=b"", ends_iteration=True)
    assert session.read_floats(a, 4) == (2.0, 3.0, 4.0, 5.0)
    assert session.download(square, 4096) == bytes(range(256)) * 16
    assert session.failures == []
    refused = session.run(add(), [a, b])
    assert session.download(refused, 16).error == "OutOfMemoryError"
    session.send(m.Tag((square,), m.RESIDENT))
    session.run(add_in_place(), [a, b], live=b"", ends_iteration=True)
    assert session.read_floats(a, 4) == (3.0, 4.0, 5.0, 6.0)
    cpu.control.send(m.SetUser(session.user))
    assert session.receive(m.Ready).limit == 0
    assert session.read_floats(session.run(add(), [a, b]), 4) == (4.0, 5.0, 6.0, 7.0)


def test_models_beyond_their_limit_keep_others_from_being_made(cpu, session):
    model = session.upload(bytes(8192))
    session.send(m.Tag((model,), m.RESIDENT))
    a = session.floats(1.0, 2.0, 3.0, 4.0)
    session.sync()
    cpu.control.send(m.SetUser(session.user, resident_limit=4096))
    cpu.report()
    failure = session.download(session.run(scale(), [a], (2.0,)), 16)
    assert failure.error == "OutOfMemoryError"
    assert "models and optimizers" in failure.text
    assert "8.00 KiB" in failure.text
    assert "4.00 KiB" in failure.text
    session.send(m.Free((model,)))
    assert session.read_floats(session.run(scale(), [a], (2.0,)), 4) == (2.0, 4.0, 6.0, 8.0)


def test_a_sentence_for_a_session_is_passed_on(cpu, session):
    cpu.control.send(m.Tell(session.session, "Something to know."))
    cpu.control.send(m.Tell(10_000, "Nobody is there."))
    assert session.receive(m.Notice).text == "Something to know."


def test_a_throttled_user_alone_runs_as_ever(cpu, session):
    cpu.control.send(m.SetUser(session.user, throttled=True))
    cpu.report()
    a = session.floats(1.0, 2.0, 3.0, 4.0)
    assert session.read_floats(session.run(scale(), [a], (2.0,)), 4) == (2.0, 4.0, 6.0, 8.0)


def test_a_throttled_user_s_work_runs_when_nobody_else_has_any(cpu, session, connect):
    other = connect("another-user")
    square = other.floats(*[0.001] * (512 * 512))
    mine = session.floats(1.0, 2.0, 3.0, 4.0)
    other.sync()
    session.sync()
    cpu.control.send(m.SetUser(session.user, throttled=True))
    cpu.report()
    for _ in range(12):
        other.run(matmul(512, ops=8), [square], live=b"", ends_iteration=True)
    others = other.next_request()
    other.send(m.Sync(other.next_work(), others))
    made = session.run(scale(), [mine], (2.0,), ends_iteration=True)
    own = session.sync()
    assert own.at_ns > other.reply(others).at_ns
    assert session.read_floats(made, 4) == (2.0, 4.0, 6.0, 8.0)
