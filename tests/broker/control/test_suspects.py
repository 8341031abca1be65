"""Programs that may have broken the device: tried alone, cleared, or known for certain."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from test_culprits import KILLER, NAMES, OTHER, Scene, device_fault, refused

from jgpu.broker.control.executors.endings import read_end
from jgpu.broker.control.executors.suspects import Suspects
from jgpu.broker.flightpage import FlightPage, Kind
from jgpu.broker.settings import DEVICE_FAULT

FLIGHTS = (1, KILLER, Kind.PROGRAM), (2, OTHER, Kind.PROGRAM)


@pytest.fixture
def scene():
    return Scene()


def alone(session, program, op):
    """The device broke under a program that had it alone, one op in flight after the other."""
    page = FlightPage.unshared()
    record = page.open("lane 1")
    for place in range(op + 1):
        record.begin(session, 9, Kind.TRIAL, program, NAMES, 2)
        record.mark()[0] = place
        flown = record.fly()
        record.rest()
        if place < op:
            record.landed(flown)
    return read_end(99, DEVICE_FAULT, page, "")


def tried(scene):
    return {each.program: set(each.through) for each in scene.culprits.trials().programs}


def test_who_was_in_flight_together_is_tried_and_who_was_alone_in_flight_as_well(scene):
    assert not scene.culprits.ended(device_fault(*FLIGHTS))
    assert tried(scene) == {KILLER: set(), OTHER: set()}
    assert refused(scene) == {}
    single = Scene()
    assert single.culprits.ended(device_fault(FLIGHTS[0]))
    assert tried(single) == {KILLER: set()}


def test_copies_and_crashes_of_the_host_have_nobody_tried(scene):
    scene.culprits.ended(scene.crash((1, KILLER, 1), (2, OTHER, 0), thread=77))
    scene.culprits.ended(scene.crash((1, KILLER, 1), status=-9, thread=0))
    assert tried(scene) == {}


def test_suspects_are_told_that_they_are_tried_and_neighbours_that_it_was_not_theirs(scene):
    scene.culprits.ended(device_fault(*FLIGHTS))
    for suspect in (1, 2):
        text = scene.culprits.story(suspect).text
        assert "one of 2 that ran at that moment" in text
        assert "it runs while nothing else does: then it is certain" in text
    assert "it was not this notebook's fault" in scene.culprits.story(4).text


def test_a_suspect_that_goes_through_is_cleared_and_no_strike_is_left(scene):
    scene.culprits.ended(device_fault(*FLIGHTS))
    assert scene.culprits.went_through("user2", OTHER)
    assert tried(scene) == {KILLER: set()}
    assert scene.culprits.went_through("user1", KILLER)
    assert tried(scene) == {}
    assert refused(scene) == {}
    assert not scene.culprits.went_through("user1", KILLER)


def test_what_breaks_the_device_alone_is_refused_from_then_on_with_its_op(scene):
    scene.culprits.ended(device_fault(*FLIGHTS))
    end = alone(1, KILLER, 1)
    assert (end.culprit.op, end.culprit.name) == (1, "aten::div.Tensor_mode")
    assert scene.culprits.ended(end)
    assert refused(scene) == {KILLER: ("user1",)}
    (told,) = scene.culprits.refusals().programs
    assert "while nothing else ran there (div.Tensor_mode;" in told.text
    own, other = scene.culprits.story(1), scene.culprits.story(2)
    assert "aten::div.Tensor_mode of this notebook ended the shared device" in own.text
    assert "It is not run again" in own.text
    assert (own.work, own.op) == (9, 1)
    assert "another user's program; it was not this notebook's fault" in other.text
    assert tried(scene) == {OTHER: set()}


def test_another_users_run_of_a_suspect_is_tried_too_until_it_went_through(scene):
    scene.culprits.ended(device_fault(*FLIGHTS))
    assert scene.culprits.went_through("user3", KILLER)
    assert tried(scene) == {KILLER: {"user3"}, OTHER: set()}
    scene.culprits.ended(alone(4, KILLER, 0))
    assert refused(scene) == {}, "user3's was not being tried any more"
    scene.culprits.ended(alone(1, KILLER, 0))
    assert refused(scene) == {KILLER: ()}


def test_who_is_suspected_again_has_to_go_through_more_often(scene):
    for runs in (1, 16, 256, 4096, 4096):
        scene.culprits.ended(device_fault(*FLIGHTS))
        for _ in range(runs - 1):
            assert not scene.culprits.went_through("user1", KILLER)
        assert scene.culprits.went_through("user1", KILLER)
        assert KILLER not in tried(scene)


class SuspectMachine(RuleBasedStateMachine):
    """Any order of faults, runs and convictions, against plain sets."""

    USERS, PROGRAMS = "abc", (KILLER, OTHER, b"x" * 16)

    def __init__(self):
        super().__init__()
        self.suspects = Suspects()
        self.times = {}
        #: runs that a suspected pair owes, and pairs that went through since
        self.owed = {}
        self.cleared = set()

    def _forget(self):
        open_programs = {program for _, program in self.owed}
        self.cleared = {pair for pair in self.cleared if pair[1] in open_programs}

    @rule(
        pairs=st.lists(
            st.tuples(st.sampled_from(USERS), st.sampled_from(PROGRAMS)),
            min_size=1,
            max_size=4,
            unique=True,
        )
    )
    def fault(self, pairs):
        self.suspects.suspect(pairs)
        for pair in pairs:
            self.times[pair] = self.times.get(pair, 0) + 1
            self.owed[pair] = min(4096, 16 ** (self.times[pair] - 1))
            self.cleared.discard(pair)

    @rule(user=st.sampled_from(USERS), program=st.sampled_from(PROGRAMS), runs=st.integers(1, 20))
    def run(self, user, program, runs):
        for _ in range(runs):
            pair = user, program
            before = self._tried(*pair)
            changed = self.suspects.went_through(user, program)
            if not before:
                assert not changed
                return
            left = self.owed.pop(pair, 1) - 1
            if left:
                self.owed[pair] = left
            else:
                self.cleared.add(pair)
            assert changed == (not left)
            self._forget()

    @rule(user=st.sampled_from(USERS), program=st.sampled_from(PROGRAMS))
    def convict(self, user, program):
        assert self.suspects.convict(user, program) == self._tried(user, program)
        self.owed.pop((user, program), None)
        self._forget()

    def _tried(self, user, program):
        return any(each == program for _, each in self.owed) and (
            (user, program) not in self.cleared
        )

    @invariant()
    def tried_is_exactly_who_owes_a_run_and_whoever_else_has_not_shown_it(self):
        self.suspects.validate()
        for user in self.USERS:
            for program in self.PROGRAMS:
                assert self.suspects.tries(user, program) == self._tried(user, program)
        listed = dict(self.suspects.tried())
        assert listed.keys() == {program for _, program in self.owed}
        for program, through in listed.items():
            assert set(through) == {user for user, each in self.cleared if each == program}


TestSuspects = SuspectMachine.TestCase
TestSuspects.settings = settings(max_examples=60, deadline=None)


def test_what_is_remembered_of_suspects_is_bounded_and_the_oldest_goes_first():
    suspects = Suspects()
    for k in range(2000):
        suspects.suspect([(f"user{k}", k.to_bytes(16, "big"))])
        suspects.validate()
    assert len(suspects.tried()) == 256
    assert suspects.tries("user1999", (1999).to_bytes(16, "big"))
    suspects.suspect([("user1", KILLER)])
    for k in range(1000):
        suspects.went_through(f"other{k}", KILLER)
        suspects.validate()
    assert suspects.tries("other0", KILLER)
