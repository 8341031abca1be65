"""Programs that may have broken the device have it alone, one by one, and everybody goes on."""

from types import SimpleNamespace

from client import chain, matmul
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from jgpu.broker.executor.programs import question_of
from jgpu.broker.executor.scheduling.feed import LaneFeed
from jgpu.broker.executor.scheduling.trials import PATIENCE_S, Trials
from jgpu.broker.executor.works.runs import RunWork
from jgpu.wire import messages as m
from jgpu.wire.program import Flags, Geometry, Op, Slot, encode_program, program_hash

SUSPECT, SOUND = b"s" * 16, b"o" * 16
SIZE = 400


class Run(RunWork):
    """A run that a lane has for as long as the test likes."""

    waits = False
    went_well = True

    def __init__(self, user, program):
        self.session = SimpleNamespace(owner=SimpleNamespace(user=user))
        self.message = SimpleNamespace(program=program)
        self.alone = False


class TrialMachine(RuleBasedStateMachine):
    """Works of several lanes and users, probes, and the control process, in any order."""

    LANES = range(3)

    def __init__(self):
        super().__init__()
        self.now = 0.0
        self.on_device = {lane: [] for lane in self.LANES}
        self.started = {lane: [] for lane in self.LANES}
        self.given = {lane: [] for lane in self.LANES}
        self.probes = []
        #: beside which others were when they began, for they had waited long enough
        self.impatient = []
        self.trials = Trials(lambda: self.now)
        self.trials.beside = lambda: len(self.probes)
        self.through = []
        self.trials.on_through = lambda *pair: self.through.append(pair)
        self.feed = LaneFeed(SimpleNamespace(submit=self._submit), None, self.trials)

    def _submit(self, lane, works):
        for work in works:
            if not work.alone and self.trials.tries(work.session.owner.user, work.message.program):
                self.impatient.append(work)
        self.on_device[lane] += works
        self.given[lane] += works

    @rule(through=st.sets(st.sampled_from("ab")), on=st.booleans())
    def told(self, through, on):
        self.trials.set(m.TryAlone((m.Suspect(SUSPECT, tuple(through)),) if on else ()))

    @rule(
        lane=st.sampled_from(LANES),
        user=st.sampled_from("abc"),
        program=st.sampled_from([SUSPECT, SOUND]),
        flush=st.booleans(),
    )
    def start(self, lane, user, program, flush):
        work = Run(user, program)
        self.started[lane].append(work)
        self.feed.launch_again(lane, [work])
        if flush:
            self.feed.flush()

    @rule(lane=st.sampled_from(LANES), well=st.booleans())
    def end(self, lane, well):
        if self.on_device[lane]:
            work = self.on_device[lane].pop(0)
            work.went_well = well
            before = list(self.through)
            self.feed.over(lane, work)
            pair = work.session.owner.user, work.message.program
            assert self.through == before + [pair] * (work.alone and well)
            self.feed.flush()

    @rule(user=st.sampled_from("abc"), question=st.sampled_from([SUSPECT, SOUND]))
    def probe(self, user, question):
        probe = SimpleNamespace(user=user, question=question, alone=False)
        tried = self.trials.tries(user, question)
        if self.trials.admits_probe(probe, user, question):
            probe.alone = tried
            assert not tried or not any(self.on_device.values())
            self.probes.append(probe)
        else:  # its session ends meanwhile
            self.trials.probe_over(probe, user, question, well=False)

    @rule()
    def probe_ends(self):
        if self.probes:
            probe = self.probes.pop()
            self.trials.probe_over(probe, probe.user, probe.question, well=True)
            self.feed.flush()

    @rule(seconds=st.sampled_from([1.0, PATIENCE_S]))
    def time_passes(self, seconds):
        self.now += seconds
        self.feed.flush()

    @rule(lane=st.sampled_from(LANES))
    def lane_is_given_up(self, lane):
        self.feed.flush(at_once=True)
        self.impatient += [work for works in self.on_device.values() for work in works]
        self.on_device[lane] = []
        self.feed.give_up(lane)

    @invariant()
    def who_is_alone_is_alone_and_each_lane_keeps_its_order(self):
        works = [work for lane in self.on_device.values() for work in lane]
        beside = [work for work in works if work not in self.impatient]
        if any(work.alone for work in beside):
            assert len(beside) == 1
            assert not self.probes
        for lane in self.LANES:
            assert self.given[lane] == self.started[lane][: len(self.given[lane])]

    def teardown(self):
        """Whatever happened, nobody waits for ever."""
        for _ in range(500):
            if self.probes:
                self.probe_ends()
            for lane in self.LANES:
                self.end(lane, well=False)
            self.time_passes(PATIENCE_S)
        assert self.given == self.started


TestTrials = TrialMachine.TestCase
TestTrials.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)


def test_a_suspect_goes_through_alone_beside_a_neighbour_and_is_told_of(cpu, connect):
    suspect, neighbour = matmul(SIZE, ops=40), matmul(SIZE, ops=41)
    key = program_hash(encode_program(suspect))
    cpu.control.send(m.TryAlone((m.Suspect(key),)))
    clients = [connect("user1"), connect("user2")]
    asked = []
    for client, program in zip(clients, (suspect, neighbour), strict=True):
        made = client.run(program, [client.upload_arena(bytes(4 * SIZE * SIZE))])
        asked.append((client, client.ask(made, 16)))
    for client, request in asked:
        assert client.reply(request).data == bytes(16)
    notice = cpu.control.receive(m.WentThrough)
    assert (notice.user, notice.program) == ("user1", key)
    cpu.control.send(m.TryAlone(()))


def test_a_question_that_is_a_suspect_is_asked_alone_and_told_of(cpu, connect):
    op = Op("aten::mm.default", (Slot(0, 0), Slot(1, 1)), {}, ())
    square = Geometry("float32", (7, 7), (7, 1))
    key = question_of(op, (square, square), (), Flags())
    cpu.control.send(m.TryAlone((m.Suspect(key, ("user2",)),)))
    client = connect("user3")
    made = client.run(chain(4, 2), [client.floats(1, 1, 1, 1)])
    request = client.next_request()
    client.send(m.Probe(request, op, (square, square)))
    assert client.reply(request).outputs == (square,)
    assert client.read_floats(made, 4) == (2, 2, 2, 2)
    notice = cpu.control.receive(m.WentThrough)
    assert (notice.user, notice.program) == ("user3", key)
    cpu.control.send(m.TryAlone(()))
