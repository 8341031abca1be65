"""Probes: who is asked for next, who pays, and how much is kept of it."""

import threading
import time
from dataclasses import dataclass, field

import pytest
from client import Executor, matmul
from results import write_result

from jgpu.broker.executor.admission.pending import PendingPrograms
from jgpu.broker.executor.admission.probes import Probes
from jgpu.broker.executor.admission.refusals import Refusals
from jgpu.broker.executor.aside import HelperThread
from jgpu.broker.executor.memory.accounts import Account
from jgpu.broker.executor.programs import HANDS, Chooser, Prober
from jgpu.broker.executor.scheduling.trials import Trials
from jgpu.broker.executor.session import SessionOwner
from jgpu.wire import messages as m
from jgpu.wire.program import Geometry, Op, Slot

DEADLINE_S = 30.0


def svd(size):
    """What a singular value decomposition returns."""
    geometry = Geometry("float32", (size, size), (size, 1))
    return Op("aten::_linalg_svd.default", (Slot(0, 0),), {}, ()), (geometry,)


def relu(*shape):
    geometry = Geometry("float32", shape, tuple(1 for _ in shape))
    return Op("aten::relu.default", (Slot(0, 0),), {}, ()), (geometry,)


# -- whose turn it is --------------------------------------------------------------------------


@dataclass
class Visitor:
    """As much of a session as a probe touches."""

    number: int
    identity: str
    account: Account = field(default_factory=lambda: Account("user1", 1 << 30))
    ahead_s: float = 0.0
    charged_s: float = 0.0
    programs: PendingPrograms = field(default_factory=PendingPrograms)
    answers: list = field(default_factory=list)

    @property
    def owner(self):
        return SessionOwner("user1", self.identity)

    def send(self, message):
        self.answers.append(message)


class Turns:
    """The scheduler's word, written by the test."""

    at_work = 2

    def __init__(self):
        self.trials = Trials(lambda: 0.0)

    def ahead_s(self, session):
        return session.ahead_s

    def users_at_work(self):
        return self.at_work

    def charge(self, session, seconds):
        session.charged_s += seconds


class Kernels(Prober):
    """Ops that take as long as the test says."""

    def __init__(self):
        super().__init__("cpu")
        self.begun = []
        self.ends = {}

    def ask(self, op, inputs, params, flags):
        size = inputs[0].shape[0]
        self.begun.append(size)
        if size in self.ends:
            assert self.ends[size].wait(DEADLINE_S)
        return super().ask(op, inputs, params, flags)


class Bench:
    """Probes over real threads, with a clock of the test's."""

    def __init__(self):
        self.kernels, self.turns, self.now = Kernels(), Turns(), 0.0
        self.woken = threading.Semaphore(0)
        self.probes = Probes(
            self.kernels,
            Chooser("null"),
            self.turns,
            lambda n: HelperThread(f"hand {n}", self.woken.release),
            Refusals(),
            self.clock,
        )

    def clock(self):
        return self.now

    def ask(self, visitor, size, *, holds=False):
        if holds:
            self.kernels.ends[size] = threading.Event()
        self.probes.ask(visitor, m.Probe(size, *relu(size)))

    def collect(self, count=1):
        """Take note of so many that are done."""
        for _ in range(count):
            assert self.woken.acquire(timeout=DEADLINE_S)
        self.probes.collect()

    def begun(self, count):
        deadline = time.monotonic() + DEADLINE_S
        while len(self.kernels.begun) < count:
            assert time.monotonic() < deadline
            time.sleep(0.001)
        return self.kernels.begun


@pytest.fixture
def bench():
    made = Bench()
    yield made
    for event in made.kernels.ends.values():
        event.set()
    made.probes.close()


def test_one_identity_has_one_probe_made_at_a_time_and_others_theirs_meanwhile(bench):
    greedy, other = Visitor(1, "a"), Visitor(2, "b")
    for size in range(10, 14):
        bench.ask(greedy, size, holds=True)
    bench.ask(other, 20)
    bench.collect()
    assert [answer.request for answer in other.answers] == [20]
    assert sorted(bench.begun(2)) == [10, 20]
    assert (greedy.programs.helping, greedy.answers) == (4, [])
    bench.kernels.ends[10].set()
    bench.collect()
    assert [answer.request for answer in greedy.answers] == [10]
    assert greedy.programs.helping == 3


def test_no_more_than_a_few_are_made_at_a_time_and_the_least_served_comes_next(bench):
    crowd = [Visitor(n, f"user {n}") for n in range(HANDS)]
    for visitor in crowd:
        bench.ask(visitor, 100 + visitor.number, holds=True)
    bench.begun(HANDS)
    late, poor = Visitor(8, "x", ahead_s=0.1), Visitor(9, "y", ahead_s=-1.0)
    bench.ask(late, 50, holds=True)
    bench.ask(poor, 60, holds=True)
    bench.kernels.ends[100].set()
    bench.collect()
    assert bench.begun(HANDS + 1)[-1] == 60


def test_whoever_is_ahead_of_others_waits_until_they_have_had_as_much(bench):
    visitor = Visitor(1, "a", ahead_s=5.0)
    bench.ask(visitor, 10)
    bench.probes.collect()
    assert bench.probes.waiting
    assert bench.kernels.begun == []
    visitor.ahead_s = 0.2
    bench.probes.collect()
    bench.collect()
    assert [answer.request for answer in visitor.answers] == [10]
    assert not bench.probes.waiting


def test_nobody_waits_longer_for_others_than_these_would_need(bench):
    visitor = Visitor(1, "a", ahead_s=5.0)
    bench.ask(visitor, 10)
    bench.now = 9.9  # two users at work, who are owed five seconds each
    bench.probes.collect()
    assert bench.kernels.begun == []
    bench.now = 10.0
    bench.probes.collect()
    bench.collect()
    assert len(visitor.answers) == 1


def test_probes_that_do_not_end_keep_their_threads_and_hold_nobody_up(bench):
    crowd = [Visitor(n, f"user {n}") for n in range(HANDS)]
    for visitor in crowd:
        bench.ask(visitor, 100 + visitor.number, holds=True)
    bench.begun(HANDS)
    other = Visitor(8, "x")
    bench.ask(other, 50)
    bench.now = 59.0
    bench.probes.collect()
    assert other.answers == []
    bench.now = 60.0
    bench.probes.collect()
    bench.collect()
    assert [answer.request for answer in other.answers] == [50]
    assert bench.begun(HANDS + 1)[-1] == 50
    # Their users go on as well, until they have lost two.
    first = crowd[0]
    bench.ask(first, 70, holds=True)
    bench.begun(HANDS + 2)
    bench.ask(first, 71)
    assert first.answers == []
    bench.now = 120.0
    bench.probes.collect()
    bench.collect()
    assert [answer.request for answer in first.answers] == [71]
    bench.ask(first, 72)
    assert "have not ended" in first.answers[-1].error[1]
    # What ends after all is answered, and its thread is one of the few again.
    bench.kernels.ends[70].set()
    bench.collect()
    assert first.answers[-1].request == 70
    bench.ask(first, 73)
    bench.collect()
    assert first.answers[-1].request == 73
    assert first.answers[-1].error is None


def test_known_answers_cost_nothing_and_wait_for_nobody(bench):
    visitor = Visitor(1, "a")
    bench.ask(visitor, 10)
    bench.collect()
    assert visitor.charged_s > 0
    other = Visitor(2, "b", ahead_s=1e9)
    bench.ask(other, 10)
    assert other.answers == visitor.answers
    assert other.charged_s == 0


def test_what_a_session_asked_before_it_ended_is_not_begun(bench):
    visitor = Visitor(1, "a")
    bench.ask(visitor, 10, holds=True)
    bench.ask(visitor, 11)
    other = Visitor(2, "a")
    bench.ask(other, 12)
    bench.probes.forget(visitor)
    bench.kernels.ends[10].set()
    bench.collect()
    bench.collect()
    assert bench.kernels.begun == [10, 12]
    assert visitor.charged_s > 0


@pytest.mark.parametrize("count", [1025, 60_000])
def test_a_question_that_is_too_large_is_answered_at_once_and_not_kept(bench, count):
    visitor = Visitor(1, "a")
    op, (geometry,) = relu(3)
    bench.probes.ask(visitor, m.Probe(1, op, (geometry,) * count))
    (answer,) = visitor.answers
    assert answer.error[0] == "ProgramError"
    assert f"at most 1024 tensors; aten::relu.default came with {count}" in answer.error[1]
    assert (len(bench.kernels), visitor.programs.helping, bench.probes.waiting) == (0, 0, False)


def test_a_long_question_of_few_tensors_is_too_large_as_well(bench):
    visitor = Visitor(1, "a")
    op = Op("aten::cat.default", ([Slot(0, 0)] * 16_000, 0), {}, ())
    bench.probes.ask(visitor, m.Probe(1, op, relu(3)[1]))
    assert "in 65536 bytes" in visitor.answers[0].error[1]


# -- through an executor -----------------------------------------------------------------------


@pytest.fixture(scope="module")
def executor():
    with Executor("cpu", lanes=2, threads=1) as made:
        yield made


def ask(client, question):
    request = client.next_request()
    client.send(m.Probe(request, *question))
    return request


def seconds(executor, client):
    rows = {row.id: row for row in executor.report().sessions}
    return rows[client.session].device_seconds


def test_probes_are_charged_as_device_time(executor):
    client = executor.connect("user1")
    began = time.thread_time()
    assert client.reply(ask(client, svd(300))).error is None
    charged_s = seconds(executor, client)
    assert charged_s > 0.001
    assert client.reply(ask(client, svd(300))).error is None
    assert seconds(executor, client) == charged_s
    assert time.thread_time() - began < 10


def test_another_users_probe_does_not_wait_for_all_of_somebodys(executor):
    greedy, other = executor.connect("user2"), executor.connect("user3")
    answered = []
    greedy.passed = answered.append
    for size in range(300, 360):
        ask(greedy, svd(size))
    assert other.reply(ask(other, relu(7))).error is None
    greedy.send(m.Memory(1000))
    greedy.receive(m.MemoryIs)
    assert len(answered) < 60
    greedy.close()


def test_a_neighbour_trains_on_while_somebody_probes(executor):
    greedy, other = executor.connect("user5"), executor.connect("user6")
    for size in range(300, 310):
        ask(greedy, svd(size))
    source = other.upload(bytes(4 * 128 * 128))
    for _ in range(20):
        made = other.run(matmul(128), [source], ends_iteration=True)
        assert other.download(made, 4) == bytes(4)
    greedy.close()


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_what_probes_cost_at_full_length():
    """120 probes of 60,000 geometries, and some 7.5 seconds of decompositions."""
    import psutil

    figures = {}
    with Executor("cpu", lanes=2, threads=1) as executor:
        client, other = executor.connect("user1"), executor.connect("user2")
        process = psutil.Process(executor.process.pid)
        client.reply(ask(client, relu(3)))
        before = process.memory_info().rss
        op, _ = relu(3)
        for round_ in range(120):
            inputs = tuple(Geometry("float32", (k + 1, round_ + 1), (1, 1)) for k in range(60_000))
            assert client.reply(ask(client, (op, inputs))).error
        figures["grown_bytes_by_120_probes_of_60000"] = process.memory_info().rss - before
        before = process.memory_info().rss
        for size in range(1, 10_001):
            client.reply(ask(client, relu(size, 5)))
        figures["grown_bytes_by_10000_small_probes"] = process.memory_info().rss - before
        already_s = seconds(executor, client)
        sizes = iter(range(300, 2000))
        asked, waits = 0, []
        began = time.monotonic()
        while seconds(executor, client) - already_s < 7.5:
            ask(client, svd(next(sizes)))
            asked += 1
            before = time.monotonic()
            other.reply(ask(other, relu(asked, 7)))
            waits.append(time.monotonic() - before)
        figures["decompositions"] = asked
        figures["wall_s"] = time.monotonic() - began
        figures["charged_s"] = seconds(executor, client) - already_s
        figures["another_users_probe_longest_s"] = max(waits)
        figures["another_users_probe_median_s"] = sorted(waits)[len(waits) // 2]
    write_result("probes", figures)
    assert figures["grown_bytes_by_120_probes_of_60000"] < 64 << 20
    assert figures["charged_s"] >= 7.5
    assert figures["another_users_probe_longest_s"] < 2.0
