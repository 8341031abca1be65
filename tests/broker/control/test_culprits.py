"""Who ended an executor: read from its page, held against program and user, told to each."""

import signal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from jgpu.broker.control.executors.culprits import Culprits, Story
from jgpu.broker.control.executors.endings import read_end
from jgpu.broker.control.executors.strikes import Strikes
from jgpu.broker.control.listening.identity import Identity, Peer
from jgpu.broker.control.listening.shares import Shares
from jgpu.broker.control.registry import Registry
from jgpu.broker.control.reports.report import Viewer
from jgpu.broker.flightpage import FlightPage, Kind
from jgpu.broker.settings import DEVICE_FAULT
from jgpu.wire.reports.report import CulpritReport

KILLER, OTHER = b"k" * 16, b"o" * 16
NAMES = b"aten::mul.Tensor\naten::div.Tensor_mode"
FPE = -signal.SIGFPE


class Scene:
    """Three users' sessions, lanes of an executor, and what its end leads to."""

    def __init__(self):
        self.registry = Registry(Shares.of(64))
        for number, user in enumerate(["user1", "user2", "user1", "user3"], 1):
            session = self.registry.admit(
                Peer(number, number),
                user,
                ticket="",
                kernel_id=str(number),
                label="",
                now=0.0,
                identity=Identity("uid", user),
            )
            self.registry.adopted(session.number)
        self.now = 0.0
        self.strikes = Strikes(5, 600.0, 600.0)
        self.culprits = Culprits(self.registry, self.strikes, lambda: self.now)

    def crash(self, *running, status=FPE, thread=1):
        """(session, program, op) in a lane each; the lane of the given place is the fault's."""
        page = FlightPage.unshared()
        idents = []
        for lane, (session, program, op) in enumerate(running):
            record = page.open(f"lane {lane}")
            record.begin(session, 7, Kind.PROGRAM, program, NAMES, 2)
            record.mark()[0] = op
            idents.append(1000 + lane)
            record._words[3] = idents[-1]  # as if by a thread of its own
        return read_end(99, status, page, fault(idents, thread))


def fault(idents, current):
    """What faulthandler writes; `current` counts from 1, 0 for a thread that is not Python's."""
    lines = ["Fatal Python error: Floating point exception", ""]
    for place, ident in enumerate([5, *idents]):
        head = "Current thread" if place == current else "Thread"
        lines += [f"{head} 0x{ident:016x} (most recent call first):", '  File "x", line 1 in f', ""]
    lines[-1:] = ["", "Extension modules: torch._C (total: 1)"] if current != 99 else []
    return "\n".join(lines)


@pytest.fixture
def scene():
    return Scene()


# -- how it ended ----------------------------------------------------------------------------


def test_the_thread_of_the_fault_is_the_culprit_among_all_that_ran(scene):
    end = scene.crash((1, KILLER, 1), (2, OTHER, 0), thread=1)
    assert end.how == "was ended by signal 8 (SIGFPE)"
    assert (end.culprit.session, end.culprit.op, end.culprit.name) == (
        1,
        1,
        "aten::div.Tensor_mode",
    )
    assert scene.crash((1, KILLER, 1), (2, OTHER, 0), thread=2).culprit.session == 2


def test_a_fault_in_a_thread_that_does_nobodys_work_is_nobodys(scene):
    end = scene.crash((1, KILLER, 1), (2, OTHER, 0), thread=0)
    assert (end.culprit, end.suspects) == (None, ())


def test_a_fault_in_a_thread_of_torchs_own_is_the_only_ones_that_ran_or_one_of_several(scene):
    alone = scene.crash((1, KILLER, 1), thread=77)
    assert alone.culprit.session == 1
    several = scene.crash((1, KILLER, 1), (2, OTHER, 0), thread=77)
    assert several.culprit is None
    assert {entry.session for entry in several.suspects} == {1, 2}


def test_what_the_host_kills_has_suspects_and_no_culprit(scene):
    end = scene.crash((1, KILLER, 1), status=-signal.SIGKILL, thread=0)
    assert end.culprit is None
    assert not end.fault
    assert [entry.session for entry in end.suspects] == [1]


def test_programs_in_flight_on_the_device_are_suspects_too():
    page = FlightPage.unshared()
    record = page.open("lane 0")
    for work in (1, 2):
        record.begin(3, work, Kind.PROGRAM, KILLER, NAMES, 2)
        record.fly()
        record.rest()
    record.landed(0)
    end = read_end(99, 3, page, "")
    assert [(entry.session, entry.work) for entry in end.suspects] == [(3, 2)]


def device_fault(*flights):
    """(session, program, kind) of what a GPU had in flight when a kernel broke it."""
    page = FlightPage.unshared()
    for lane, (session, program, kind) in enumerate(flights):
        record = page.open(f"lane {lane}")
        record.begin(session, 7, kind, program)
        record.fly()
        record.rest()
    return read_end(99, DEVICE_FAULT, page, "")


def test_the_only_program_in_flight_broke_the_device(scene):
    copy = (2, bytes(16), Kind.UPLOAD)
    end = device_fault((1, KILLER, Kind.PROGRAM), (1, KILLER, Kind.PROGRAM), copy)
    assert end.culprit.session == 1
    assert end.culprit.program == KILLER
    assert scene.culprits.ended(end)
    assert scene.strikes.struck("user1", KILLER)


def test_of_several_programs_in_flight_all_are_named_and_none_is_blamed_without_a_strike(scene):
    flights = (1, KILLER, Kind.PROGRAM), (2, OTHER, Kind.PROGRAM)
    end = device_fault(*flights)
    assert end.culprit is None
    assert {suspect.session for suspect in end.suspects} == {1, 2}
    assert not scene.culprits.ended(end)
    assert "one of 2 that ran" in scene.culprits.story(1).text
    scene.culprits.ended(device_fault(flights[0]))
    assert scene.culprits.ended(device_fault(*flights))
    assert scene.culprits.refusals().programs[0].program == KILLER


def test_a_good_end_suspects_nobody(scene):
    assert scene.crash((1, KILLER, 1), status=0).suspects == ()


# -- what each is told -----------------------------------------------------------------------


def test_each_session_is_told_whether_it_was_its_own_doing(scene):
    assert scene.culprits.ended(scene.crash((1, KILLER, 1), (2, OTHER, 0)))
    own, other, sibling = (scene.culprits.story(number) for number in (1, 2, 3))
    assert "aten::div.Tensor_mode of this notebook ended the shared device" in own.text
    assert "SIGFPE" in own.text
    assert (own.work, own.op) == (7, 1)
    assert "another user's program; it was not this notebook's fault" in other.text
    assert "user1" not in other.text
    assert (other.work, other.op) == (0, 0)
    assert "another of your notebooks" in sibling.text
    assert scene.culprits.story(1) == Story()


def test_where_nobody_is_certain_those_who_ran_are_told_so_and_the_others_that_they_did_not(scene):
    end = scene.crash((1, KILLER, 1), (2, OTHER, 0), status=-signal.SIGKILL)
    assert not scene.culprits.ended(end)
    assert "may have been this, or not" in scene.culprits.story(1).text
    assert "one of 2" in scene.culprits.story(2).text
    assert "it was not this notebook's fault" in scene.culprits.story(4).text
    assert scene.culprits.refusals().programs == ()


def test_the_status_names_the_culprit_to_administrators_and_to_himself_alone(scene):
    assert scene.culprits.last_end(Viewer("user2", administrator=False)) is None
    scene.culprits.ended(scene.crash((1, KILLER, 1)))
    seen = scene.culprits.last_end(Viewer("root", administrator=True)).culprit
    assert seen == CulpritReport(
        user="user1", session=1, op="aten::div.Tensor_mode", program=KILLER.hex()
    )
    assert scene.culprits.last_end(Viewer("user1", administrator=False)).culprit == seen
    row = scene.culprits.last_end(Viewer("user2", administrator=False))
    assert row.how == "was ended by signal 8 (SIGFPE)"
    assert row.culprit == CulpritReport(user="another user")


# -- what is refused -------------------------------------------------------------------------


def refused(scene):
    return {r.program: r.users for r in scene.culprits.refusals().programs}


def test_a_program_is_refused_to_a_user_after_two_ends_and_to_all_after_a_second_user(scene):
    scene.culprits.ended(scene.crash((1, KILLER, 1)))
    assert refused(scene) == {}
    scene.culprits.ended(scene.crash((3, KILLER, 1)))
    assert refused(scene) == {KILLER: ("user1",)}
    (told,) = scene.culprits.refusals().programs
    assert (told.op, told.name) == (1, "aten::div.Tensor_mode")
    assert "twice" in told.text
    scene.culprits.ended(scene.crash((2, KILLER, 1)))
    assert refused(scene) == {KILLER: ()}
    assert "two users" in scene.culprits.refusals().programs[0].text


def test_of_several_suspects_of_a_fault_the_one_that_has_struck_before_is_blamed(scene):
    scene.culprits.ended(scene.crash((1, KILLER, 1)))
    assert scene.culprits.ended(scene.crash((1, KILLER, 1), (2, OTHER, 0), thread=77))
    assert refused(scene) == {KILLER: ("user1",)}
    assert not scene.culprits.ended(scene.crash((2, OTHER, 0), (4, OTHER, 0), thread=77))
    assert refused(scene) == {KILLER: ("user1",)}


def test_a_user_whose_programs_end_executors_again_and_again_is_held_off_for_a_while(scene):
    for k in range(5):
        assert scene.culprits.held("user1") == ""
        scene.now = 60.0 * k
        scene.culprits.ended(scene.crash((1, bytes([k + 1]) * 16, 1)))
    text = scene.culprits.held("user1")
    assert "5 times within 10 minutes" in text
    assert scene.culprits.held("user2") == ""
    scene.now += 599.0
    assert scene.culprits.held("user1") == text
    scene.now += 1.0
    assert scene.culprits.held("user1") == ""


@given(st.lists(st.floats(0.1, 400.0), min_size=1, max_size=40))
@settings(deadline=None)
def test_a_user_is_held_off_exactly_after_five_ends_within_the_window(gaps):
    strikes, now, ends = Strikes(5, 600.0, 600.0), 0.0, []
    for gap in gaps:
        now += gap
        strikes.note("user1", now, KILLER)
        ends.append(now)
        if len(ends) >= 5 and ends[-5] >= now - 600.0:
            assert strikes.held_s("user1", now) == pytest.approx(600.0)
            ends = []
        strikes.validate()


class StrikeMachine(RuleBasedStateMachine):
    """Any order of ends, against a plain count."""

    def __init__(self):
        super().__init__()
        self.strikes = Strikes(5, 600.0, 600.0)
        self.seen = {}
        self.now = 0.0

    @rule(user=st.sampled_from("abc"), program=st.sampled_from([KILLER, OTHER, bytes(16)]))
    def end(self, user, program):
        self.now += 1.0
        self.strikes.note(user, self.now, program)
        if any(program):
            users = self.seen.setdefault(program, {})
            users[user] = users.get(user, 0) + 1

    @rule(seconds=st.floats(0.0, 1000.0))
    def wait(self, seconds):
        self.now += seconds

    @invariant()
    def nobody_is_refused_but_whom_the_rule_names(self):
        self.strikes.validate()
        refused = {strike.program: strike.refused for strike in self.strikes.refused()}
        for program in (KILLER, OTHER):
            users = self.seen.get(program, {})
            if len(users) > 1:
                assert refused[program] == ()
            elif max(users.values(), default=0) >= 2:
                assert refused[program] == tuple(users)
            else:
                assert program not in refused


TestStrikes = StrikeMachine.TestCase
TestStrikes.settings = settings(max_examples=50, deadline=None)


def test_what_is_held_against_programs_is_bounded_and_the_oldest_goes_first():
    strikes = Strikes(5, 600.0, 600.0)
    for k in range(3000):
        for _ in range(2):
            strikes.note(f"user{k}", float(k), k.to_bytes(16, "big"))
    strikes.validate()
    refused = strikes.refused()
    assert len(refused) == 1024
    assert refused[0].users == {"user2999": 2}


def test_what_is_held_against_users_is_bounded():
    strikes = Strikes(1, 600.0, 1e6)
    for k in range(3000):
        strikes.note(f"user{k}", float(k), KILLER)
    strikes.validate()
    assert [bool(strikes.held_s(f"user{k}", 3000.0)) for k in (0, 1975, 1976, 2999)] == [
        False,
        False,
        True,
        True,
    ]
    (strike,) = strikes.refused()
    assert strike.refused == ()
    assert len(strike.users) == 2
