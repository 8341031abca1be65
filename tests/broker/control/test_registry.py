"""Seats and sessions: limits, lifetimes, and every order in which they can end."""

import pytest
from hypothesis import settings, strategies
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, rule

from jgpu.broker.control.listening.identity import Identity, Peer
from jgpu.broker.control.listening.shares import Share, Shares
from jgpu.broker.control.registry import Registry as Bare
from jgpu.broker.control.registry import SessionPhase
from jgpu.errors import BrokerRefused, JgpuError, QuotaExceeded

ME = Peer(pid=10, uid=1)
OTHER = Peer(pid=20, uid=2)
THIRD = Peer(pid=30, uid=3)


def Registry(*numbers, **fields):  # noqa: N802 - as the class, of an administrator's numbers
    return Bare(Shares.of(*numbers, **fields))


def identity(peer):
    return Identity("uid", str(peer.uid))


def take_seat(registry, ticket="", peer=ME):
    ticket = ticket or f"seat {len(registry.seats)} of {peer.uid}"
    return registry.take_seat(ticket, f"user{peer.uid}", peer, "", "", identity(peer))


def admit(registry, peer=ME, user="user1", ticket="", **fields):
    fields = {"kernel_id": "", "label": "", "now": 0.0, "identity": identity(peer)} | fields
    return registry.admit(peer, user, ticket=ticket, **fields)


def test_sessions_are_numbered_and_never_twice():
    registry = Registry(4)
    first = admit(registry)
    registry.ended(first.number, 1.0)
    assert [first.number, admit(registry).number] == [1, 2]


def test_what_a_hello_leaves_out_comes_from_its_seat():
    registry = Registry(4)
    registry.take_seat("t", "user1", ME, "kernel", "a.ipynb", identity(ME))
    seated = admit(registry, ticket="t")
    assert (seated.kernel_id, seated.label) == ("kernel", "a.ipynb")
    assert admit(registry, ticket="t", label="b.py").label == "b.py"


@pytest.mark.parametrize("other", [OTHER, Peer(ME.pid, ME.uid, "server1")], ids=["uid", "socket"])
def test_a_ticket_of_another_uid_or_another_socket_means_nothing(other):
    registry = Registry(4)
    registry.take_seat("t", "user1", ME, "kernel", "a.ipynb", identity(ME))
    thief = admit(registry, peer=other, user="user2", ticket="t")
    assert thief.kernel_id == ""
    assert registry.leave_seat("t", other.origin, restart=False) == [thief]
    assert registry.seats
    assert registry.leave_seat("t", ME.origin, restart=False) == []
    assert not registry.seats


def test_sessions_without_a_ticket_do_not_end_together():
    registry = Registry(4)
    admit(registry)
    assert registry.leave_seat("", ME.origin, restart=False) == []


def test_limits_count_live_sessions():
    registry = Registry(2, user_sessions=1)
    session = admit(registry)
    with pytest.raises(QuotaExceeded, match="user1 has 1 sessions"):
        admit(registry)
    admit(registry, OTHER, user="user2")
    with pytest.raises(BrokerRefused, match="serves 2 sessions already"):
        admit(registry, THIRD, user="user3")
    registry.adopted(session.number)
    assert registry.end(session.number)
    assert session.state is SessionPhase.ENDING
    admit(registry)


def test_the_number_of_seats_has_a_bound():
    registry = Registry(1)
    for _ in range(4):
        take_seat(registry)
    with pytest.raises(QuotaExceeded, match="All 4 seats"):
        take_seat(registry, peer=OTHER)


def taken(action, most=3000):
    """How often an action succeeds, and the sentence at its end."""
    for count in range(most):
        try:
            action()
        except JgpuError as error:
            return count, str(error)
    return most, ""


def test_whoever_takes_all_seats_that_they_can_leaves_seats_to_others():
    registry = Registry(256)
    count, text = taken(lambda: take_seat(registry))
    assert count == 512
    assert "user1 has 512 seats" in text
    assert "max_user_seats" in text
    assert "Shut down kernels" in text
    assert take_seat(registry, peer=OTHER)


def test_whoever_opens_all_sessions_that_they_can_leaves_sessions_to_others():
    registry = Registry(256)
    count, text = taken(lambda: admit(registry))
    assert count == 128
    assert "user1 has 128 sessions" in text
    assert "max_user_sessions" in text
    assert admit(registry, OTHER, user="user2")


def test_however_many_take_all_they_can_whoever_has_none_finds_some_left():
    registry = Registry(256)
    for uid in range(10, 13):
        count, text = taken(lambda uid=uid: admit(registry, Peer(1, uid), f"user{uid}"))
        taken(lambda uid=uid: take_seat(registry, peer=Peer(1, uid)))
    assert count == 1
    assert "serves 225 sessions already" in text
    assert "32, which are kept for those who have none" in text
    assert len(registry.seats) == 1024 - 128 + 1
    for uid in range(20, 51):
        assert admit(registry, Peer(1, uid), f"user{uid}")
        assert take_seat(registry, peer=Peer(1, uid))
    with pytest.raises(BrokerRefused, match="serves 256 sessions already, the most it is set up"):
        admit(registry, Peer(1, 60), "user60")
    registry.validate()


def test_who_shares_a_uid_and_comes_by_sockets_of_their_own_has_limits_of_their_own():
    registry = Registry(8, user_sessions=1)
    for name in ("server1", "server2"):
        admit(registry, identity=Identity("socket", name))
    with pytest.raises(QuotaExceeded):
        admit(registry, identity=Identity("socket", "server1"))


def test_a_quota_that_names_sessions_stands_above_the_share_of_one():
    registry = Registry(8, user_sessions=1)
    admit(registry, most=2)
    admit(registry, most=2)
    with pytest.raises(QuotaExceeded, match=r"user1 may have 2\. Shut"):
        admit(registry, most=2)


def test_sessions_whose_ends_take_long_are_not_opened_without_end():
    registry = Registry(16, user_sessions=2)

    def open_and_leave():
        session = admit(registry)
        registry.adopted(session.number)
        registry.end(session.number)

    count, text = taken(open_and_leave)
    assert count == 4
    assert "4 sessions of user1 are ending" in text
    assert admit(registry, OTHER, user="user2")
    registry.ended(1, 0.0)
    open_and_leave()


def test_memory_shared_with_the_broker_is_counted_in_bytes():
    registry = Registry(16, user_arenas=3 << 20)
    session = admit(registry, arena=2 << 20)
    admit(registry, arena=1 << 20)
    with pytest.raises(QuotaExceeded, match=r"user1 share 3 MiB .* 1 MiB more .* \(3 MiB, max"):
        admit(registry, arena=1 << 20)
    admit(registry, OTHER, user="user2", arena=3 << 20)
    registry.ended(session.number, 0.0)
    admit(registry, arena=2 << 20)


def test_small_numbers_are_not_divided():
    shares = Shares.of(3)
    assert (shares.sessions, shares.seats) == (Share(3, 4), Share(12, 16))
    assert shares.sessions.is_left(2, 2)


def test_settled_use_is_remembered_of_the_last_users():
    registry = Registry(4)
    for number in range(5000):
        registry.ended(admit(registry, user=f"user{number}").number, 1.0)
    assert len(registry.usage) == 4096
    assert "user4999" in registry.usage


def test_a_session_that_no_executor_has_ends_at_once():
    registry = Registry(2)
    session = admit(registry)
    assert not registry.end(session.number)
    assert session.state is SessionPhase.ENDED
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
        session.become(SessionPhase.ENDING)


class AnyOrder(RuleBasedStateMachine):
    """Requests, deaths and executors in any order keep the registry sound."""

    tickets = Bundle("tickets")
    numbers = Bundle("numbers")
    peers = strategies.sampled_from([ME, OTHER, THIRD])

    def __init__(self):
        super().__init__()
        self.registry = Registry(8, user_sessions=3, user_seats=6, user_arenas=5)
        self.count = 0

    @rule(target=tickets, peer=peers)
    def take_seat(self, peer):
        self.count += 1
        ticket = f"t{self.count}"
        try:
            take_seat(self.registry, ticket, peer)
        except QuotaExceeded:
            assert self.seats(peer) == 6
        return ticket

    def seats(self, peer):
        return sum(seat.holder.uid == peer.uid for seat in self.registry.seats.values())

    @rule(
        target=numbers,
        peer=peers,
        ticket=tickets | strategies.just(""),
        arena=strategies.integers(0, 3),
    )
    def hello(self, peer, ticket, arena):
        every = [s for s in self.registry.sessions.values() if s.peer.uid == peer.uid]
        live = [session for session in every if session.live]
        left = 8 - sum(s.live for s in self.registry.sessions.values()) - bool(live)
        fits = sum(session.arena for session in every) + arena <= 5
        try:
            number = admit(
                self.registry, peer=peer, user=f"user{peer.uid}", ticket=ticket, arena=arena
            ).number
        except QuotaExceeded:
            assert len(live) == 3 or len(every) - len(live) >= 6 or not fits
            return 0
        except BrokerRefused:
            assert left <= 0
            return 0
        assert left > 0
        assert len(live) < 3
        assert fits
        return number

    @rule(ticket=tickets, peer=peers, restart=strategies.booleans())
    def leave(self, ticket, peer, restart):
        for session in self.registry.leave_seat(ticket, peer.origin, restart=restart):
            self.registry.end(session.number)
        assert not any(s.live for s in self.registry.of_ticket(peer.origin, ticket))

    @rule(ticket=tickets, peer=peers)
    def holder_gone(self, ticket, peer):
        self.registry.holder_gone(peer.origin, ticket)

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
        assert all(s.state is SessionPhase.WAITING for s in self.registry.sessions.values())

    @invariant()
    def sound(self):
        self.registry.validate()


TestAnyOrder = AnyOrder.TestCase
TestAnyOrder.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
