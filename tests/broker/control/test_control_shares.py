"""One user takes all that they can get of a real broker; others get theirs all the same.

The scripted executor does no work. Users are told apart as the broker's own uid may tell them
(`Hello.user`): each user named so is an identity of its own.
"""

import contextlib
import os
import socket
import time

import pytest
from control_client import until
from results import write_result

from jgpu.broker.control.listening.handshake import MAX_REQUEST_BYTES
from jgpu.errors import BrokerRefused
from jgpu.wire import limits
from jgpu.wire.messages import AskStatus, Ready, Refused, SeatTaken, StatusIs, TakeSeat, Welcome

SMALL = [
    "c.JgpuBroker.max_sessions = 16",
    "c.JgpuBroker.max_user_sessions = 6",
    "c.JgpuBroker.max_user_seats = 9",
    "c.JgpuBroker.max_user_connections = 5",
]


def take_all(broker, user, attempts):
    """Sessions that `user` got in so many attempts, and the last answer."""
    held, last = 0, None
    for _ in range(attempts):
        client = broker.client()
        last = client.hello(user=user)
        held += isinstance(last, Welcome)
        if not isinstance(last, Welcome):
            client.close()
    return held, last


def seats_of(broker, user, attempts):
    """The same with seats."""
    taken, sentence = 0, ""
    for _ in range(attempts):
        try:
            broker.take_seat(user=user)
            taken += 1
        except Exception as error:
            sentence = str(error)
    return taken, sentence


def silent(broker, count):
    """Connections that say nothing, opened one after the other."""
    made = []
    for _ in range(count):
        client = broker.client()
        made.append(client)
    return made


def test_one_users_sessions_and_seats_leave_others_theirs(start_broker):
    broker = start_broker(config=SMALL).ready()
    held, last = take_all(broker, "user1", 20)
    assert held == 6
    assert (last.reason, "user1 has 6 sessions" in last.text) == ("quota", True)
    taken, sentence = seats_of(broker, "user1", 20)
    assert taken == 9
    assert "user1 has 9 seats (kernels)" in sentence
    client = broker.client()
    assert isinstance(client.hello(user="user2", ticket=broker.take_seat(user="user2")), Welcome)
    assert isinstance(client.receive(), Ready)


def test_whoever_has_too_many_connections_is_told_so_in_a_sentence(start_broker):
    config = [*SMALL, "c.JgpuBroker.handshake_timeout = 30.0"]
    broker = start_broker(config=config).ready()
    crowd = silent(broker, 5)
    sixth = until(lambda: refused_at_once(broker), "the sixth is refused")
    assert sixth.reason == BrokerRefused.reason
    assert "5 connections to the broker" in sixth.text
    assert "max_user_connections" in sixth.text
    for client in crowd:
        client.close()
    until(lambda: answered(broker), "an answer")


def refused_at_once(broker):
    answer = broker.client().control_reply()
    return answer if isinstance(answer, Refused) else None


def answered(broker):
    try:
        return isinstance(broker.ask(AskStatus()), StatusIs)
    except ConnectionError:
        return False


def test_a_request_is_bounded_before_anything_of_it_is_kept(broker):
    client = broker.client()
    client.socket.sendall(b"jgp1" + (MAX_REQUEST_BYTES + 1).to_bytes(4, "big") + bytes(20))
    assert "larger than one may be" in client.control_reply().text


#: no login of a person
NOBODY = 65534
AS_ROOT = pytest.mark.skipif(os.getuid() != 0, reason="another uid needs root")


@contextlib.contextmanager
def crowd_of(uid, broker, count):
    """A process of another uid that holds connections and says nothing on them."""
    folder = broker.users.path.parent
    folder.chmod(0o711)
    broker.users.path.chmod(0o666)
    told, tells = os.pipe()
    waits, ends = os.pipe()
    child = os.fork()
    if not child:
        os.close(ends)
        os.chdir(folder)
        os.setuid(uid)
        kept = []
        for _ in range(count):
            kept.append(socket.socket(socket.AF_UNIX))
            kept[-1].connect(broker.users.path.name)
        os.write(tells, b"1")
        os.read(waits, 1)
        os._exit(0)
    os.close(waits)
    os.close(tells)
    try:
        assert os.read(told, 1) == b"1"
        yield
    finally:
        os.close(ends)
        os.close(told)
        assert os.waitpid(child, 0)[1] == 0


@AS_ROOT
def test_one_users_silent_connections_leave_others_theirs(start_broker):
    config = [*SMALL, "c.JgpuBroker.handshake_timeout = 60.0"]
    broker = start_broker(config=config).ready()
    with crowd_of(NOBODY, broker, 100):
        assert isinstance(broker.ask(AskStatus()), StatusIs)
        client = broker.client()
        assert isinstance(client.hello(user="user2"), Welcome)


@AS_ROOT
@pytest.mark.long
def test_two_thousand_of_everything_by_one_user_and_one_of_each_for_another(start_broker):
    broker = start_broker().ready()
    figures = {}
    before = time.perf_counter()
    figures["sessions"], last = take_all(broker, "user1", 2000)
    figures["seats"], sentence = seats_of(broker, "user1", 2000)
    figures["attempts_s"] = time.perf_counter() - before
    figures["sentences"] = [last.text, sentence]
    assert (figures["sessions"], figures["seats"]) == (128, 512)
    with crowd_of(NOBODY, broker, 2000):
        before = time.perf_counter()
        ticket = broker.ask(TakeSeat(limits.PROTOCOL, "kernel", user="user2"))
        assert isinstance(ticket, SeatTaken)
        client = broker.client()
        assert isinstance(client.hello(user="user2", ticket=ticket.ticket), Welcome)
        assert isinstance(client.receive(), Ready)
        figures["silent_connections_of_a_third"] = 2000
        figures["another_user_s"] = time.perf_counter() - before
    write_result("shares-of-the-broker", figures)
