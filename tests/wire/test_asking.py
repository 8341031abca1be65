"""Who is trusted to answer, and one question."""

import fcntl
import os
import pwd
import socket
import struct
import sys
import termios
import threading
from pathlib import Path

import processes
import pytest

from jgpu.errors import (
    BrokerRefused,
    BrokerUnreachable,
    QuotaExceeded,
    VersionMismatch,
)
from jgpu.wire import asking
from jgpu.wire.address import (
    Address,
)
from jgpu.wire.asking import ask, ask_for, check_owner, connect
from jgpu.wire.framing import FrameWriter
from jgpu.wire.messages import AskStatus, Done, Refused, StatusIs
from jgpu.wire.reports.asking import ask_json, ask_report
from jgpu.wire.reports.report import BrokerReport, Report


@pytest.fixture
def listener(tmp_path):
    """A listening socket at tmp_path/s."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as server:
        server.bind(str(tmp_path / "s"))
        server.listen(8)
        yield server


def here(tmp_path, origin="environment"):
    return Address(tmp_path / "s", origin)


# -- who -----------------------------------------------------------------------------------------


def test_a_socket_may_be_the_users_roots_or_a_system_accounts():
    address = Address(Path("/s"), "environment")
    for owner in (0, 999, 4321):
        check_owner(address, owner, user=4321)
    with pytest.raises(BrokerRefused, match="belongs to user 4322"):
        check_owner(address, 4322, user=4321)


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a file away")
def test_nothing_is_sent_to_a_socket_that_is_somebody_elses(tmp_path, listener):
    os.chown(tmp_path / "s", 54321, -1)
    with pytest.raises(BrokerRefused, match="belongs to user 54321, who is neither you"):
        ask(here(tmp_path), AskStatus())
    listener.setblocking(False)
    with pytest.raises(BlockingIOError):
        listener.accept()


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a file away")
def test_an_owner_is_named(tmp_path, listener):
    people = [entry for entry in pwd.getpwall() if entry.pw_uid >= 1000]
    if not people:
        pytest.skip("no account of a person here")
    os.chown(tmp_path / "s", people[0].pw_uid, -1)
    with pytest.raises(BrokerRefused, match=f"belongs to {people[0].pw_name},"):
        ask(here(tmp_path), AskStatus())


#: connects to the system's socket in a namespace where its owner, uid 54321, has no number
WITHIN = """
import os, subprocess, sys
from pathlib import Path
from jgpu.errors import BrokerRefused
from jgpu.wire import address, asking
outside, mode = Path(sys.argv[1]), sys.argv[2]
subprocess.run(["mount", "-t", "tmpfs", "-o", f"mode={mode}", "tmpfs", "/run"], check=True)
Path("/run/jgpu").mkdir(mode=0o755)
subprocess.run(["mount", "--bind", outside, "/run/jgpu"], check=True)
for path in (address.SYSTEM_SOCKET, outside / "broker.sock"):
    try:
        asking.connect(address.Address(path, "environment")).close()
        print("connected")
    except BrokerRefused as error:
        print(error)
"""


def from_within(directory, mode):
    command = ["unshare", "--user", "--map-root-user", "--mount", sys.executable, "-c", WITHIN]
    command += [str(directory), mode]
    done = processes.run(command, capture_output=True, text=True, check=False)
    if "unshare:" in done.stderr:
        pytest.skip(f"no user namespaces here: {done.stderr.strip()}")
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.fixture
def outside(tmp_path):
    """A directory with a broker's socket, both of a uid that no namespace maps."""
    path = tmp_path / "servers"
    path.mkdir(mode=0o755)
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(path / "broker.sock"))
        listening.listen()
        (path / "broker.sock").chmod(0o666)
        for each in (path / "broker.sock", path):
            os.chown(each, 54321, 54321)
        yield path


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a file away")
def test_in_a_user_namespace_the_systems_socket_is_trusted_and_no_other(outside):
    system, other = from_within(outside, "755")
    assert system == "connected"
    assert "outside of this user namespace" in other


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a file away")
def test_in_a_user_namespace_where_anybody_could_have_put_it_it_is_not(outside):
    system, _ = from_within(outside, "1777")
    assert "only /run/jgpu/broker.sock is trusted" in system


def test_in_a_user_namespace_owners_from_outside_look_alike(monkeypatch, tmp_path):
    walled = Path("/usr/jgpu.sock")
    monkeypatch.setattr(asking, "_is_namespaced", lambda: True)
    monkeypatch.setattr(asking, "SYSTEM_SOCKET", walled)
    unknown = asking._overflow_uid()
    check_owner(Address(walled, "system"), unknown, user=4321)
    check_owner(Address(walled, "system"), 4321, user=4321)
    with pytest.raises(BrokerRefused, match="outside of this user namespace"):
        check_owner(Address(tmp_path / "s", "environment"), unknown, user=4321)
    monkeypatch.setattr(asking, "SYSTEM_SOCKET", tmp_path / "s")
    with pytest.raises(BrokerRefused, match="outside of this user namespace"):
        check_owner(Address(tmp_path / "s", "system"), unknown, user=4321)


def test_without_proc_nothing_is_taken_for_a_namespace(monkeypatch):
    def absent(path):
        raise FileNotFoundError(str(path))

    monkeypatch.setattr(Path, "read_text", absent)
    assert not asking._is_namespaced()
    assert asking._overflow_uid() == 65534


# -- one question --------------------------------------------------------------------------------


def unread(connection):
    """Bytes that the peer has not taken yet."""
    return struct.unpack("i", fcntl.ioctl(connection, termios.TIOCOUTQ, bytes(4)))[0]


def answering(listener, data):
    """Accept one connection in a thread, read the request, say `data`, close."""

    def serve():
        connection, _ = listener.accept()
        with connection:
            connection.recv(1 << 16)
            for piece in data:
                connection.sendall(piece)
                while unread(connection):
                    pass

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    return thread


def test_the_reply_may_come_in_pieces(tmp_path, listener):
    frame = FrameWriter().encode(StatusIs(b"{}"), 1)
    thread = answering(listener, [frame[:3], frame[3:20], frame[20:]])
    assert ask(here(tmp_path), AskStatus()) == StatusIs(b"{}")
    thread.join(20)


@pytest.mark.parametrize(
    ("reason", "error"),
    [
        ("refused", BrokerRefused),
        ("quota", QuotaExceeded),
        ("version", VersionMismatch),
        ("whatever", BrokerRefused),
    ],
)
def test_a_refusal_is_raised_as_the_error_it_names(tmp_path, listener, reason, error):
    frame = FrameWriter().encode(Refused(reason, "Because."), 1)
    thread = answering(listener, [frame])
    with pytest.raises(error, match="Because") as caught:
        ask(here(tmp_path), AskStatus())
    assert type(caught.value) is error
    thread.join(20)


@pytest.mark.parametrize(
    ("data", "sentence"),
    [([], "closed the connection unanswered"), ([b"HTTP/1.1 400"], "does not speak jgpu's")],
)
def test_what_is_no_reply_is_no_broker(tmp_path, listener, data, sentence):
    thread = answering(listener, data)
    with pytest.raises(BrokerUnreachable, match=sentence):
        ask(here(tmp_path), AskStatus())
    thread.join(20)


def test_an_answer_that_does_not_come_ends_at_the_deadline(tmp_path, listener):
    with pytest.raises(BrokerUnreachable, match=r"no answer within 0\.05 s"):
        ask(here(tmp_path), AskStatus(), 0.05)


def test_a_full_queue_ends_at_the_deadline(tmp_path):
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as server:
        server.bind(str(tmp_path / "s"))
        server.listen(0)
        first = connect(here(tmp_path))
        with first, pytest.raises(BrokerUnreachable, match="takes no connection"):
            connect(here(tmp_path), 0.05)


def test_absent_and_ended_brokers_are_told_apart(tmp_path):
    with pytest.raises(BrokerUnreachable, match="There is no broker at"):
        ask(here(tmp_path), AskStatus())
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as server:
        server.bind(str(tmp_path / "s"))
    with pytest.raises(BrokerUnreachable, match=r"has ended\. JGPU_ADDRESS names it\."):
        ask(here(tmp_path), AskStatus())
    with pytest.raises(BrokerUnreachable, match="systemctl start jgpu"):
        ask(here(tmp_path, "system"), AskStatus())


def test_a_connection_that_breaks_is_told(tmp_path, listener):
    def serve():
        connection, _ = listener.accept()
        while not connection.recv(1, socket.MSG_PEEK):
            pass
        connection.close()  # with the request unread: a reset

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    with pytest.raises(BrokerUnreachable, match=r"broke the connection \(Connection reset"):
        ask(here(tmp_path), AskStatus())
    thread.join(20)


def test_a_private_brokers_absence_has_no_advice_about_the_environment(tmp_path):
    with pytest.raises(BrokerUnreachable, match=r"There is no broker at unix:\S+$"):
        ask(here(tmp_path, "user"), AskStatus())


def test_a_socket_of_another_type_is_unreachable(tmp_path):
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as server:
        server.bind(str(tmp_path / "s"))
        with pytest.raises(BrokerUnreachable, match="cannot be reached: Protocol wrong type"):
            ask(here(tmp_path), AskStatus())


def test_a_path_that_is_no_socket_is_unreachable(tmp_path):
    (tmp_path / "s").touch()
    with pytest.raises(BrokerUnreachable, match="has ended"):
        ask(here(tmp_path), AskStatus())


def test_a_reply_of_another_kind_is_no_reply(tmp_path, listener):
    frame = FrameWriter().encode(Done("done"), 1)
    thread = answering(listener, [frame])
    with pytest.raises(BrokerUnreachable, match="answered Done"):
        ask_for(here(tmp_path), AskStatus(), StatusIs)
    thread.join(20)


def test_a_report_is_asked_for_as_it_comes_or_read(tmp_path, listener):
    frame = FrameWriter().encode(StatusIs(b'{"broker": {}}'), 1)
    for ask_it, told in ((ask_json, b'{"broker": {}}'), (ask_report, Report(BrokerReport()))):
        thread = answering(listener, [frame])
        assert ask_it(here(tmp_path)) == told
        thread.join(20)
