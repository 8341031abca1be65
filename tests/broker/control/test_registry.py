"""Seats and sessions: limits, lifetimes, and every order in which they can end."""

import pytest
from hypothesis import settings, strategies
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, rule

from jgpu.broker.control.identity import Peer
from jgpu.broker.control.registry import Registry, SessionState
from jgpu.errors import BrokerRefused, JgpuError, QuotaExceeded

ME = Peer(pid=10, uid=1)
OTHER = Peer(pid=20, uid=2)


def admit(registry, peer=ME, user="user1", ticket="", **fields):
    fields = {"kernel_id": "", "label": "", "now": 0.0} | fields
    return registry.admit(peer, user, ticket=ticket, **fields)


def test_sessions_are_numbered_and_never_twice():
    registry = Registry(4)
    first = admit(registry)
    registry.ended(first.number, 1.0)
    assert [first.number, admit(registry).number] == [1, 2]


def test_what_a_hello_leaves_out_comes_from_its_seat():
    registry = Registry(4)
    registry.take_seat("t", "user1", ME, "kernel", "a.ipynb")
    seated = admit(registry, ticket="t")
    assert (seated.kernel_id, seated.label) == ("kernel", "a.ipynb")
    assert admit(registry, ticket="t", label="b.py").label == "b.py"


def test_a_ticket_of_another_uid_means_nothing():
    registry = Registry(4)
    registry.take_seat("t", "user1", ME, "kernel", "a.ipynb")
    thief = admit(registry, peer=OTHER, user="user2", ticket="t")
    assert thief.kernel_id == ""
    assert registry.leave_seat("t", OTHER.uid, restart=False) == [thief]
    assert registry.seats
    assert registry.leave_seat("t", ME.uid, restart=False) == []
    assert not registry.seats


def test_sessions_without_a_ticket_do_not_end_together():
    registry = Registry(4)
    admit(registry)
    assert registry.leave_seat("", ME.uid, restart=False) == []


def test_limits_count_live_sessions():
    registry = Registry(2, max_user_sessions=1)
    session = admit(registry)
    with pytest.raises(QuotaExceeded, match="user1 has 1 sessions"):
        admit(registry)
    admit(registry, user="user2")
    with pytest.raises(BrokerRefused, match="serves 2 sessions already"):
        admit(registry, user="user3")
    registry.adopted(session.number)
    assert registry.end(session.number)
    assert session.state is SessionState.ENDING
    admit(registry)


def test_the_number_of_seats_has_a_bound():
    registry = Registry(1)
    for number in range(4):
        registry.take_seat(str(number), "user1", ME, "", "")
    with pytest.raises(QuotaExceeded, match="All 4 seats"):
        registry.take_seat("one more", "user1", ME, "", "")


def test_a_session_that_no_executor_has_ends_at_once():
    registry = Registry(2)
    session = admit(registry)
    assert not registry.end(session.number)
    assert session.state is SessionState.ENDED
    assert not registry.end(session.number)


def test_after_an_executor_live_sessions_wait_and_ending_ones_are_over():
    registry = Registry(4)
    live, ending, waiting = (admit(registry) for _ in range(3))
    for session in (live, ending):
        registry.adopted(session.number)
    registry.end(ending.number)
    assert registry.executor_gone() == [ending]
    assert registry.waiting() == [live, waiting]
    assert [live.adoptions, waiting.adoptions] == [1, 0]


def test_time_is_booked_for_the_user():
    registry = Registry(4)
    first = admit(registry)
    registry.book(first.number, 2.0)
    registry.ended(first.number, 1.0)
    assert registry.ended(first.number, 5.0) is None
    assert (registry.usage["user1"].sessions, registry.usage["user1"].device_seconds) == (1, 3.0)


def test_an_impossible_change_of_state_is_our_mistake():
    registry = Registry(4)
    session = admit(registry)
    with pytest.raises(AssertionError, match="cannot go from"):
        session.become(SessionState.ENDING)


class AnyOrder(RuleBasedStateMachine):
    """Requests, deaths and executors in any order keep the registry sound."""

    tickets = Bundle("tickets")
    numbers = Bundle("numbers")
    peers = strategies.sampled_from([ME, OTHER])

    def __init__(self):
        super().__init__()
        self.registry = Registry(5, max_user_sessions=3)
        self.count = 0

    @rule(target=tickets, peer=peers)
    def take_seat(self, peer):
        self.count += 1
        ticket = f"t{self.count}"
        try:
            self.registry.take_seat(ticket, f"user{peer.uid}", peer, "", "")
        except JgpuError:
            assert len(self.registry.seats) == 20
        return ticket

    @rule(target=numbers, peer=peers, ticket=tickets | strategies.just(""))
    def hello(self, peer, ticket):
        live = sum(s.live for s in self.registry.sessions.values())
        try:
            return admit(self.registry, peer=peer, user=f"user{peer.uid}", ticket=ticket).number
        except QuotaExceeded:
            return 0
        except BrokerRefused:
            assert live == 5
            return 0

    @rule(ticket=tickets, peer=peers, restart=strategies.booleans())
    def leave(self, ticket, peer, restart):
        for session in self.registry.leave_seat(ticket, peer.uid, restart=restart):
            self.registry.end(session.number)
        assert not any(s.live for s in self.registry.of_ticket(peer.uid, ticket))

    @rule(ticket=tickets, peer=peers)
    def holder_gone(self, ticket, peer):
        self.registry.holder_gone(peer.uid, ticket)

    @rule()
    def adopt_all(self):
        for session in self.registry.waiting():
            self.registry.adopted(session.number)

    @rule(number=numbers)
    def process_gone(self, number):
        self.registry.end(number)

    @rule(number=numbers)
    def session_ended(self, number):
        self.registry.ended(number, 1.0)

    @rule()
    def executor_gone(self):
        self.registry.executor_gone()
        assert all(s.state is SessionState.WAITING for s in self.registry.sessions.values())

    @invariant()
    def sound(self):
        self.registry.validate()


TestAnyOrder = AnyOrder.TestCase
TestAnyOrder.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
