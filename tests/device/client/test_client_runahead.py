"""How far recording runs ahead of the device: by ops, by the device's time, and who waits."""

import signal

import pytest
from lesson import NEG, Client

from jgpu.device.client.notebook.runahead import (
    MOST_OPS,
    REPORTED_OPS,
    RUN_AHEAD_S,
    RunAhead,
    run_ahead_s,
)
from jgpu.errors import ConfigError
from jgpu.wire import messages as m


class Clock:
    """A clock that the test sets."""

    now_s = 0.0

    def __call__(self):
        return self.now_s


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def ahead(clock):
    return RunAhead(clock)


def test_reports_are_asked_for_once_and_only_where_much_is_not_done(ahead):
    assert not ahead.sent(1, REPORTED_OPS)
    assert ahead.sent(2, 1)
    assert not ahead.sent(3, REPORTED_OPS)
    ahead.forget()
    assert not ahead.sent(1, REPORTED_OPS)
    assert ahead.sent(2, 1), "another executor was not asked"


def test_of_a_slow_device_so_many_ops_may_be_ahead(ahead, clock):
    for work in range(1, 101):
        ahead.sent(work, 100)
    clock.now_s = 10.0
    ahead.done(1)
    clock.now_s = 20.0
    ahead.done(2)  # 10 ops a second
    assert ahead.ops == 9800
    assert ahead.is_too_far
    ahead.done(100 - MOST_OPS // 100)
    assert ahead.ops <= MOST_OPS
    assert not ahead.is_too_far


def test_of_a_fast_device_its_ops_of_a_while_may_be_ahead(ahead, clock):
    most = int(100_000 * RUN_AHEAD_S)
    for work in range(1, 1001):
        ahead.sent(work, 100)
    ahead.done(1)
    clock.now_s = 0.1
    ahead.done(101)  # 10,000 ops in 0.1 s
    assert ahead.ops == 89_900
    assert ahead.is_too_far
    ahead.done(1000 - most // 100)  # at the same moment: no new rate
    assert ahead.ops == most
    assert ahead.is_too_far is False
    ahead.sent(1001, 1)
    assert ahead.is_too_far


def test_time_in_which_the_device_had_nothing_to_do_says_nothing_of_its_rate(ahead, clock):
    for work in range(1, 101):
        ahead.sent(work, 100)
    ahead.done(1)
    clock.now_s = 0.1
    ahead.done(100)  # 99,000 ops a second, and nothing is left
    clock.now_s = 1000.0
    for work in range(101, 301):
        ahead.sent(work, 100)
    ahead.done(101)
    assert ahead.ops == 19_900
    assert not ahead.is_too_far


def test_a_burst_too_short_to_measure_leaves_no_interval_open(ahead, clock):
    for work in range(1, 101):
        ahead.sent(work, 100)
    ahead.done(1)
    clock.now_s = 0.1
    ahead.done(51)  # 50,000 ops a second
    clock.now_s = 0.101
    ahead.done(100)  # the device is idle from here on
    clock.now_s = 1000.0
    for work in range(101, 201):
        ahead.sent(work, 100)
    ahead.done(101)
    assert ahead.ops == 9900
    assert not ahead.is_too_far


def test_what_is_done_or_taken_back_is_not_ahead(ahead):
    ahead.sent(1, 5000)
    ahead.clear()
    assert not ahead.is_too_far
    ahead.done(1)
    assert ahead.ops == 0


@pytest.mark.parametrize(("text", "seconds"), [("", RUN_AHEAD_S), ("2", 2.0), ("0", 0.0)])
def test_the_environment_says_how_many_seconds(text, seconds):
    assert run_ahead_s({"JGPU_RUN_AHEAD": text}) == seconds
    assert run_ahead_s({}) == RUN_AHEAD_S


@pytest.mark.parametrize("text", ["soon", "-1", "nan"])
def test_what_is_no_number_of_seconds_is_refused(text):
    with pytest.raises(ConfigError, match=f"JGPU_RUN_AHEAD={text}: set a number of seconds"):
        run_ahead_s({"JGPU_RUN_AHEAD": text})


@pytest.fixture
def client():
    made = Client(most_ahead=MOST_OPS)
    made.upload()
    yield made
    made.validate()


def ops_ahead(client):
    return client.session.outbox.ahead.ops


def record_too_many(client):
    """Record ops without reading a value, until the session waits."""
    x = client.upload()
    for _ in range(4 * MOST_OPS):
        client.record(NEG, x)


def test_recording_goes_on_when_the_device_has_come_nearer(client):
    told = []

    def done():
        told.append(ops_ahead(client))
        client.peer.send(m.WorksDone(client.session.outbox.work))
        client.peer.then(done)

    client.peer.then(done)
    record_too_many(client)
    asked = [each for each in client.sent() if isinstance(each, m.ReportProgress)]
    assert asked == [m.ReportProgress(REPORTED_OPS)]
    assert told
    assert min(told) > MOST_OPS


def test_an_interrupt_ends_the_wait_and_takes_back_what_is_ahead(client):
    client.peer.then(lambda: signal.raise_signal(signal.SIGINT))
    with pytest.raises(KeyboardInterrupt):
        record_too_many(client)
    assert isinstance(client.sent()[-1], m.Cancel)
    assert ops_ahead(client) == 0
