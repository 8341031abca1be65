"""Connections that open, end, are refused or begun anew, and waits that end with them."""

import signal
import threading

import pytest
import torch
from lesson import NEG, NONZERO, Client
from memory_pair import CUDA

from jgpu import errors
from jgpu.device.client.connection import ConnectionPhase
from jgpu.wire import messages as m
from jgpu.wire import program as wire


@pytest.fixture
def client():
    made = Client()
    yield made
    made.validate()


def interrupt():
    signal.raise_signal(signal.SIGINT)


def failed(work, text, request=None, kind="IndexError", buffers=()):
    return m.Failed(work, 0, "", kind, text, buffers, request)


def test_the_first_use_waits_until_the_executor_has_the_session():
    client, phases = Client(ready=None), []

    def be_ready():
        phases.append(client.session.connection.phase)
        client.validate()
        client.peer.send(CUDA)

    connect, link = client.session.connection._connect, None

    def connecting():
        nonlocal link
        link = connect()
        link.peer.then(m.Notice("Behind 2 others."), be_ready)
        return link

    client.session.connection._connect = connecting
    assert client.session.device_facts() == CUDA.device
    assert phases == [ConnectionPhase.OPENING]
    assert client.session.connection.phase is ConnectionPhase.OPEN
    client.peer.send(m.Ready(CUDA.device, 5))
    client.session.poll()
    assert client.session.connection.ready.limit == 5
    client.validate()


def test_what_is_lost_is_told_once_and_the_next_use_connects_anew(client):
    x, told = client.upload(), []
    client.session.connection.on_lost = lambda text: told.append(text) or f"{text} Run it again."
    client.peer.hang_up()
    with pytest.raises(errors.DeviceLost, match="Run it again"):
        client.session.synchronize()
    assert told == ["The connection to the GPU broker ended."]
    client.validate()
    assert client.session.connection.phase is ConnectionPhase.LOST
    assert x.graveyard is not client.session.buffers.graveyard
    assert client.upload().id == 1
    assert len(client.links) == 2


def test_a_session_that_the_broker_ends_says_why(client):
    client.upload()
    client.peer.send(m.Refused("limit", "You have too many."), m.Notice("Not heard any more."))
    with pytest.raises(errors.DeviceLost, match=r"ended this session: You have too many\."):
        client.session.poll()
    assert client.links[0].is_closed


def test_nonsense_ends_the_connection(client):
    client.upload()
    client.peer._to_client += b"nonsense" * 8
    with pytest.raises(errors.DeviceLost, match="The broker sent nonsense"):
        client.session.poll()


def test_another_executor_is_asked_nothing_of_before(client):
    x = client.upload()
    kept, heard = client.record(NEG, x), []
    client.session.ask(lambda work, number: m.Sync(work, number), lambda: None, heard.append)
    client.peer.send(m.Resync(3, lost=True))
    client.session.poll()
    assert heard == [None]
    assert client.sent() == [m.Resynced(3)]
    assert kept.graveyard is not client.session.buffers.graveyard
    y = client.upload()
    client.record(NEG, y)
    client.session.cut()
    assert [type(each) for each in client.sent()] == [m.Upload, m.Define, m.Run]


def test_a_wait_raises_what_failed_before_it_and_the_next_one_goes_on(client):
    client.upload()
    client.peer.then(failed(1, "first"))
    with pytest.raises(errors.WorkFailed, match="first"):
        client.session.synchronize()
    client.peer.send(m.Synced(1), failed(1, "together"), m.Synced(2))
    with pytest.raises(errors.WorkFailed, match="together"):
        client.session.synchronize()
    client.peer.then(m.Synced(3))
    client.session.synchronize()
    assert client.session.settled
    assert len(client.session.requests) == 0


def test_a_request_that_failed_raises_where_it_was_asked(client):
    x = client.upload()
    client.peer.then(failed(2, "no", request=1))
    with pytest.raises(errors.WorkFailed, match="no"):
        client.session.download(x, 0, memoryview(bytearray(16)))
    client.peer.then(m.MemoryIs(3, 1, 2, 3, 4))
    client.peer.script.appendleft(m.Synced(2))
    assert client.session.memory().peak == 4


def test_sizes_that_only_the_run_tells_are_waited_for(client):
    x = client.upload()
    client.sent()
    geometry = wire.Geometry("int64", (2, 1), (1, 2))

    before = client.record(NEG, x)

    def report():
        earlier, run = (each for each in client.sent() if isinstance(each, m.Run))
        assert (earlier.first, earlier.report, before.id) == (2, False, 2)
        assert (run.report, run.ends_iteration) == (True, True)
        client.peer.send(m.Learnt(run.work, run.program, (m.TensorReport(0, 0, geometry, 16),)))

    client.peer.then(report)
    ((made, found),) = client.session.run_alone(NONZERO, [x], [0], [])
    assert (made.nbytes, found.shape, found.dtype) == (16, (2, 1), torch.int64)


def test_a_run_whose_sizes_are_waited_for_and_that_fails_raises_at_once(client):
    x = client.upload()
    client.peer.then(failed(2, "bad"))
    with pytest.raises(IndexError, match=r"^bad$"):
        client.session.run_alone(NONZERO, [x], [0], [])
    assert len(client.session.requests) == 0


def test_an_interrupt_takes_back_the_cell_and_a_second_one_all(client):
    client.upload()
    client.session.progress.begin_cell("2")
    client.sent()

    def synced():
        client.peer.send(*(m.Synced(number) for number in range(1, 6)))

    for _ in range(2):
        client.peer.then(interrupt)
        with pytest.raises(KeyboardInterrupt):
            client.session.synchronize()
    client.peer.then(synced)
    client.session.synchronize()
    assert not client.session.requests.takes_back
    cancelled = [each for each in client.sent() if isinstance(each, m.Cancel)]
    assert cancelled == [m.Cancel(2, 1), m.Cancel(4, 0)]
    assert len(client.session.requests) == 0


def test_what_a_waiter_is_told_who_has_left_is_not_in_place_of_what_failed_before(client):
    client.upload()
    client.peer.then(interrupt)
    with pytest.raises(KeyboardInterrupt):
        client.session.synchronize()
    client.peer.send(failed(1, "before"), failed(2, "its own", request=1), m.Synced(2))
    client.peer.then(m.Synced(3))
    with pytest.raises(errors.WorkFailed, match="before"):
        client.session.synchronize()


def test_whoever_only_looks_does_not_wait_for_a_thread_that_computes(client):
    session = client.session
    client.upload()
    has, done = threading.Event(), threading.Event()

    def hold():
        with session._lock:
            has.set()
            done.wait(30)

    thread = threading.Thread(target=hold)
    thread.start()
    has.wait(30)
    assert not session.catch_up()
    done.set()
    thread.join(30)
    assert session.catch_up()


def test_a_closed_session_has_said_goodbye():
    client = Client()
    client.upload()
    client.session.close()
    assert client.sent()[-1] == m.Quit()
    assert client.links[0].is_closed
    client.validate()
    client.session.close()


def test_a_child_of_a_child_has_no_connection_either():
    client = Client()
    client.upload()
    for _ in range(2):
        client.session.after_fork()
        client.validate()
        assert client.session.connection.is_forked
    with pytest.raises(RuntimeError, match="forked subprocess"):
        client.session.device_facts()


def test_a_child_of_a_process_that_has_not_used_the_device_may():
    client = Client()
    client.session.after_fork()
    assert client.upload().id == 1
