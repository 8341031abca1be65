"""An op that does not end, of a session that has: its lane is given up, and others go on."""

import contextlib
import os
import time
from pathlib import Path

import pytest
from client import DEADLINE_S, Executor, add, chain, matmul, program, vector

from jgpu.wire import messages as m
from jgpu.wire.program import Op, Out, Slot

SCRIPT = str(Path(__file__).with_name("endless_executor.py"))
ENDLESS = program(1, [Op("aten::special_bessel_j0", (Slot(0, 0),), {}, (Out(1, 0),))], [vector(4)])


class Endless:
    """An executor whose endless ops end when told to."""

    def __init__(self, directory, **settings):
        self._fifo = directory / "fifo"
        os.mkfifo(self._fifo)
        self.executor = Executor(
            "cpu", program=(SCRIPT, str(self._fifo)), threads=1, capacity=64 << 20, **settings
        )

    def begin(self, client):
        """Have a client begin an endless op, and wait until it is what a lane runs.

        What its works leave behind is known by then, so that others' are started behind it.
        """
        data = client.floats(1, 2, 3, 4)
        client.run(chain(ops=4), [data], live=bytes(1), ends_iteration=True)
        client.sync()
        begun = self.begun
        client.run(ENDLESS, [data])
        self.until(lambda: self.begun > begun)
        lane = self.until(lambda: self.lane_of(client.session))
        return lane.id

    @property
    def begun(self):
        """How many endless ops have begun."""
        file = self._fifo.with_suffix(".begun")
        return file.stat().st_size if file.exists() else 0

    def lane_of(self, session):
        """The lane that is at a session, if one is."""
        return next((each for each in self.lanes if each.running == session), None)

    @property
    def lanes(self):
        """The lanes, by the executor's report."""
        return self.executor.report().lanes

    def until(self, condition):
        """Wait for a condition; its value."""
        deadline = time.monotonic() + DEADLINE_S
        while not (value := condition()):
            assert time.monotonic() < deadline, self.executor.report()
            time.sleep(0.005)
        return value

    def dies(self, client):
        """End a client as its process would, and wait until the executor has seen it."""
        client.close()
        self.executor.control.receive(m.SessionEnding)

    def retire(self, lane, session, text=""):
        """What the watchdog does."""
        self.executor.control.send(m.RetireLane(lane, session, text))

    def end_ops(self):
        """Let the endless ops that run end, also those that have not come to the pipe yet."""

        def over():
            with contextlib.suppress(OSError):
                os.close(os.open(self._fifo, os.O_WRONLY | os.O_NONBLOCK))
            return all(each.running is None for each in self.lanes)

        self.until(over)


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    made = Endless(tmp_path_factory.mktemp("endless"), lanes=1)
    yield made
    made.end_ops()
    made.executor.__exit__()


@pytest.fixture
def host(shared):
    """The executor, with one lane and nobody in it."""
    yield shared
    shared.end_ops()
    for client in shared.executor.clients:
        client.close()
    shared.until(lambda: not shared.lanes)
    shared.executor.clients.clear()


def test_who_waited_behind_the_op_goes_on_in_a_new_lane(host):
    stuck, other = host.executor.connect("user1"), host.executor.connect("user2")
    lane = host.begin(stuck)
    # A program, and behind it in the lane what is too little for the scheduler to hear of.
    first = other.run(add(), [other.floats(1, 2, 3, 4), other.floats(1, 1, 1, 1)])
    second = other.run(add(), [first, first])
    request = other.next_request()
    other.send(m.Sync(other.next_work(), request))
    third = other.run(matmul(64), [other.upload(bytes(4 * 64 * 64))])
    host.dies(stuck)
    assert [each.state for each in host.lanes] == ["open"]
    host.retire(lane, stuck.session)
    assert isinstance(other.reply(request), m.Synced)
    assert other.read_floats(second, 4) == (4.0, 6.0, 8.0, 10.0)
    assert other.read_floats(third, 2) == (0.0, 0.0)
    assert {each.state for each in host.lanes} == {"retired", "open"}
    assert host.executor.report().used >= 16
    host.end_ops()
    host.executor.ended(stuck.session)
    assert [each.state for each in host.until(lambda: len(host.lanes) < 2 and host.lanes)] == [
        "open"
    ]


def test_what_a_dead_session_had_behind_the_op_is_dropped_and_its_memory_is_free(host):
    stuck, dead, other = (host.executor.connect(f"user{k}") for k in (1, 2, 3))
    lane = host.begin(stuck)
    dead.run(add(), [dead.floats(1, 2, 3, 4), dead.floats(1, 1, 1, 1)])
    host.until(lambda: host.executor.report().sessions[1].state == "running")
    host.dies(stuck)
    host.dies(dead)
    host.retire(lane, stuck.session)
    host.executor.ended(dead.session)
    made = other.run(add(), [other.floats(1, 2, 3, 4), other.floats(1, 1, 1, 1)])
    assert other.read_floats(made, 4) == (2.0, 3.0, 4.0, 5.0)


def test_as_many_lanes_as_there_may_be_can_be_lost_and_others_get_new_ones(host):
    stuck = [host.executor.connect(f"user{k}") for k in (1, 2)]
    lanes = []
    for each in stuck:
        lanes.append(host.begin(each))
        host.dies(each)
        host.retire(lanes[-1], each.session)
    assert lanes == [0, 1]
    other = host.executor.connect("user3")
    made = other.run(add(), [other.floats(1, 2, 3, 4), other.floats(1, 1, 1, 1)])
    assert other.read_floats(made, 4) == (2.0, 3.0, 4.0, 5.0)
    assert [each.state for each in host.lanes] == ["retired", "retired", "open"]
    host.end_ops()
    for each in stuck:
        host.executor.ended(each.session)


def test_an_order_about_a_lane_that_is_at_something_else_changes_nothing(host):
    stuck, other = host.executor.connect("user1"), host.executor.connect("user2")
    lane = host.begin(stuck)
    behind = other.run(add(), [other.floats(1, 2, 3, 4), other.floats(1, 1, 1, 1)])
    gone = host.executor.connect("user3")
    gone.close()
    host.executor.ended(gone.session)
    host.retire(lane, gone.session)
    host.retire(7, stuck.session + 100)
    assert [each.state for each in host.lanes] == ["open"]
    host.end_ops()
    assert other.read_floats(behind, 4) == (2.0, 3.0, 4.0, 5.0)


def test_a_living_session_is_told_why_it_ends(host):
    stuck, other = host.executor.connect("user1"), host.executor.connect("user2")
    lane = host.begin(stuck)
    host.retire(lane, stuck.session, "An op of yours took longer than 5 s.")
    refused = stuck.receive(m.Refused)
    assert (refused.reason, refused.text) == ("op_limit", "An op of yours took longer than 5 s.")
    made = other.run(add(), [other.floats(1, 2, 3, 4), other.floats(1, 1, 1, 1)])
    assert other.read_floats(made, 4) == (2.0, 3.0, 4.0, 5.0)
