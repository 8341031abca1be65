"""Device time by cell: of each what its own works took, whenever they ran."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_pump import Host

from jgpu.broker.executor.works.celltimes import CellDeviceTimes
from jgpu.wire import messages as m


@pytest.fixture
def host():
    made = Host()
    yield made
    made.close()


@pytest.fixture
def times():
    return CellDeviceTimes()


def test_a_cell_has_what_it_sent(host):
    client = host.connect("user1")
    cells = host.pump.sessions[1].cells.times
    client.upload(b"before the first cell")
    for name, works in (("1", 1), ("2", 0), ("3", 2)):
        client.send(m.CellStarted(name))
        for _ in range(works):
            client.upload(b"1234")
        client.send(m.CellEnded())
        host.settle()
    assert list(cells.seconds) == ["1", "3"]
    assert all(seconds > 0 for seconds in cells.seconds.values())


def test_cells_that_come_at_once_are_told_apart(host):
    client = host.connect("user1")
    for name in ("1", "2", "3"):
        client.send(m.CellStarted(name))
        client.upload(b"1234")
        client.upload(b"1234")
        client.send(m.CellEnded())
    host.settle()
    assert list(host.pump.sessions[1].cells.times.seconds) == ["1", "2", "3"]


def test_a_cell_whose_work_was_taken_back_has_what_was_done(times):
    times.begin("1", 0)
    times.count(1, 1.0)
    times.begin("2", 3)  # works 2 and 3 were taken back
    times.count(4, 5.0)
    assert times.seconds == {"1": 1.0, "2": 5.0}


def test_what_came_before_the_first_cell_is_nobodys(times):
    times.count(1, 3.0)
    times.begin("1", 1)
    assert times.seconds == {}
    times.count(2, 1.0)
    assert times.seconds == {"1": 1.0}


def test_a_number_that_comes_again_counts_anew(times):
    times.begin("1", 0)
    times.count(1, 5.0)
    times.begin("1", 1)  # IPython did not count the first
    assert times.seconds == {}
    times.count(2, 0.5)
    assert times.seconds == {"1": 0.5}


def test_the_last_sixteen_are_remembered(times):
    for number in range(100):
        times.begin(str(number), number)
        times.count(number + 1, 1.0)
    assert list(times.seconds) == [str(number) for number in range(84, 100)]


def test_cells_without_end_behind_one_work_are_bounded(times):
    for number in range(5000):
        times.begin(str(number), 200)
    assert len(times._next) == 1024
    times.count(201, 1.0)
    assert times.seconds == {"4999": 1.0}


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 6)), min_size=1, max_size=14))
def test_each_cell_gets_its_own_works_whatever_the_order(plan):
    """Of each cell: how many works it sends, and how many are done before the next begins."""
    times, owners, expected, sent, done = CellDeviceTimes(), [], {}, 0, 0

    def do(count):
        nonlocal done
        for name in owners[done : done + count]:
            done += 1
            times.count(done, float(done))
            expected[name] = expected.get(name, 0.0) + done

    for number, (works, first) in enumerate(plan):
        times.begin(str(number), sent)
        owners += [str(number)] * works
        sent += works
        do(first)
    do(sent)
    assert times.seconds == expected
