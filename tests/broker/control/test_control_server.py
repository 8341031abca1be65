"""The control process with a scripted executor: seats, sessions, restarts, ends, bad input."""

import grp
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import control_client
import processes
import pytest
from control_client import ARENA, Client, until

from jgpu.broker.control.listening.listener import Listener
from jgpu.errors import BrokerRefused, ConfigError, QuotaExceeded, VersionMismatch
from jgpu.wire import limits
from jgpu.wire.arena import Arena
from jgpu.wire.framing import FrameWriter
from jgpu.wire.messages import (
    AskStatus,
    AskStop,
    CellStarted,
    Hello,
    LeaveSeat,
    Quit,
    Ready,
    Refused,
    Resync,
    Runtime,
    SeatTaken,
    Stopping,
    Sync,
    Synced,
    TakeSeat,
    Welcome,
)


def open_session(broker, **fields):
    client = broker.client()
    welcome = client.hello(**fields)
    assert isinstance(welcome, Welcome)
    return client, welcome


def client_process(broker, ticket="", mode=""):
    process = processes.start(
        [sys.executable, control_client.__file__, str(broker.address.path), ticket, mode],
        stdout=subprocess.PIPE,
    )
    assert process.line() == b"ready\n"
    return process


def end(process):
    process.kill()
    process.wait()
    process.stdout.close()


def test_a_session_is_welcomed_and_served_by_the_executor(broker):
    client, welcome = open_session(broker)
    assert welcome.session == 1
    assert len(welcome.token) == 16
    assert isinstance(client.receive(), Ready)
    client.send(Sync(1, 5))
    assert client.receive() == Synced(5)


def test_what_a_client_sends_right_after_its_hello_reaches_the_executor(broker):
    client = broker.client()
    arena = Arena.create(ARENA)
    hello = Hello(limits.PROTOCOL, Runtime("3", "2.13.0", ""), 1, arena=ARENA)
    data = FrameWriter().encode(hello, 0) + FrameWriter().encode(Sync(1, 9), 0)
    socket.send_fds(client.socket, [data], [arena.descriptor])
    arena.close()
    assert isinstance(client.control_reply(), Welcome)
    assert isinstance(client.receive(), Ready)
    assert client.receive() == Synced(9)


def test_a_quit_ends_the_session_and_the_connection(broker):
    client, _ = open_session(broker)
    assert isinstance(client.receive(), Ready)
    client.send(Quit())
    assert client.receive() is None
    until(lambda: not broker.status()["sessions"])
    assert broker.status()["users"][0]["device_seconds"] == 1.5


def test_sessions_wait_for_an_executor_that_is_still_starting(start_broker, tmp_path):
    broker = start_broker(script=f"slow:{tmp_path / 'go'}")
    client, _ = open_session(broker)
    assert broker.status()["devices"][0]["state"] == "starting"
    assert broker.status()["sessions"][0]["state"] == "starting"
    (tmp_path / "go").touch()
    assert isinstance(client.receive(), Ready)


def test_seats_are_unguessable_and_sessions_belong_to_them(broker):
    first, second = broker.take_seat(kernel_id="a", label="a.ipynb"), broker.take_seat()
    assert first != second
    assert len(first) >= 32
    open_session(broker, ticket=first)
    row = broker.status()["sessions"][0]
    assert (row["kernel_id"], row["label"]) == ("a", "a.ipynb")
    assert broker.status()["broker"]["seats"] == 2


def test_children_of_a_kernel_share_its_ticket_and_leaving_the_seat_ends_them_all(broker):
    ticket = broker.take_seat()
    sessions = [open_session(broker, ticket=ticket)[0] for _ in range(3)]
    other, _ = open_session(broker)
    for client in (*sessions, other):
        assert isinstance(client.receive(), Ready)
    assert isinstance(broker.ask(LeaveSeat(ticket)), SeatTaken)
    assert [client.receive() for client in sessions] == [None] * 3
    until(lambda: len(broker.status()["sessions"]) == 1)
    assert broker.status()["broker"]["seats"] == 0
    other.send(Sync(1, 1))
    assert other.receive() == Synced(1)


def test_a_restart_drops_the_sessions_and_keeps_the_seat(broker):
    ticket = broker.take_seat(kernel_id="k")
    client, _ = open_session(broker, ticket=ticket)
    assert isinstance(client.receive(), Ready)
    broker.ask(LeaveSeat(ticket, restart=True))
    assert client.receive() is None
    assert broker.status()["broker"]["seats"] == 1
    open_session(broker, ticket=ticket)
    assert broker.status()["sessions"][-1]["kernel_id"] == "k"


def test_giving_up_an_unknown_seat_is_no_error(broker):
    assert broker.ask(LeaveSeat("from another broker")) == SeatTaken("from another broker")


def test_a_session_with_a_ticket_of_an_earlier_broker_is_served_and_can_be_left(broker):
    client, _ = open_session(broker, ticket="of an earlier broker")
    assert isinstance(client.receive(), Ready)
    broker.ask(LeaveSeat("of an earlier broker"))
    assert client.receive() is None


def test_a_killed_process_is_noticed_within_a_second(broker):
    process = client_process(broker)
    assert len(broker.status()["sessions"]) == 1
    started = time.monotonic()
    end(process)
    until(lambda: not broker.status()["sessions"])
    assert time.monotonic() - started < 1.0


def test_a_killed_process_is_noticed_although_a_fork_holds_its_socket(broker):
    with client_process(broker, mode="fork") as process:
        fork = int(process.line())
        process.kill()
        process.wait()
        until(lambda: not broker.status()["sessions"])
        assert Path(f"/proc/{fork}").exists()
        os.kill(fork, signal.SIGKILL)


def test_the_seat_of_a_killed_server_goes_with_its_last_session(broker):
    code = (
        "import sys; from pathlib import Path\n"
        "from jgpu.wire.address import Address; from jgpu.wire.asking import ask\n"
        "from jgpu.wire.messages import TakeSeat\n"
        f"seat = ask(Address(Path(sys.argv[1]), 'user'), TakeSeat({limits.PROTOCOL}, 'k'))\n"
        "print(seat.ticket, flush=True); sys.stdin.read()"
    )
    server = processes.start(
        [sys.executable, "-c", code, str(broker.address.path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    ticket = server.line().decode().strip()
    client, _ = open_session(broker, ticket=ticket)
    assert isinstance(client.receive(), Ready)
    server.stdin.close()
    end(server)
    assert broker.status()["broker"]["seats"] == 1
    client.send(Quit())
    until(lambda: broker.status()["broker"]["seats"] == 0)


def test_an_executor_that_dies_is_replaced_and_sessions_learn_what_they_lost(broker):
    client, _ = open_session(broker)
    other, _ = open_session(broker)
    assert isinstance(client.receive(), Ready)
    assert isinstance(other.receive(), Ready)
    client.send(CellStarted("crash"))
    for survivor in (client, other):
        assert survivor.receive() == Resync(1, lost=True, text="The executor ended.")
    other.send(Sync(1, 3))
    # The scripted executor numbers anew; its reader starts where this client's frames go on.
    device = broker.ready().status()["devices"][0]
    assert device["restarts"] == 1
    assert "SIGKILL" in device["note"]


def test_a_client_that_dies_while_no_executor_is_there_is_not_handed_on(start_broker, tmp_path):
    broker = start_broker(script=f"slow:{tmp_path / 'go'}")
    process = client_process(broker, mode="early")
    assert len(broker.status()["sessions"]) == 1
    end(process)
    until(lambda: not broker.status()["sessions"])
    (tmp_path / "go").touch()
    broker.ready()


# -- refusals --------------------------------------------------------------------------------


def test_wrong_versions_are_refused_with_a_sentence(broker):
    with pytest.raises(VersionMismatch, match="speaks protocol 99"):
        broker.ask(TakeSeat(99, "k"))
    refused = broker.client().hello(protocol=99)
    assert isinstance(refused, Refused)
    assert refused.reason == "version"


def test_a_torch_that_does_not_fit_is_refused_at_once_or_when_the_executor_says_its_own(
    start_broker, tmp_path
):
    config = [
        "c.JgpuBroker.executor_environment = "
        f"{{'SCRIPT': 'slow:{tmp_path / 'go'}', 'SCRIPT_TORCH': '2.13.0', 'SCRIPT_SCHEMA': 'aa'}}"
    ]
    broker = start_broker(device="cpu", config=config)
    old = broker.client().hello(runtime=Runtime("3", "2.11.0", ""))
    assert isinstance(old, Refused)
    assert "torch 2.11.0" in old.text
    early, _ = open_session(broker, runtime=Runtime("3", "2.13.0", "bb"))
    (tmp_path / "go").touch()
    late = early.receive()
    assert isinstance(late, Refused)
    assert "not those of the broker" in late.text
    assert early.receive() is None
    assert isinstance(broker.client().hello(runtime=Runtime("3", "2.13.0+cpu", "aa")), Welcome)


def test_no_more_sessions_than_allowed(start_broker):
    broker = start_broker("--max-sessions", "2").ready()
    first, _ = open_session(broker)
    open_session(broker)
    refused = broker.client().hello()
    assert isinstance(refused, Refused)
    assert "serves 2 sessions already" in refused.text
    assert isinstance(first.receive(), Ready)
    first.send(Quit())
    until(lambda: len(broker.status()["sessions"]) == 1)
    open_session(broker)


def test_an_executor_that_dies_while_the_broker_ends_is_noticed(start_broker, tmp_path):
    reports = tmp_path / "reports"
    environment = f"c.JgpuBroker.executor_environment = {{'SCRIPT_REPORTS': {str(reports)!r}}}"
    interval = "c.JgpuBroker.usage_interval = 1000.0"
    broker = start_broker(config=[interval, environment]).ready()
    client, _ = open_session(broker)
    client.receive()
    # The session's beginning is counted; nothing asks for a report then until the broker ends.
    until(lambda: reports.exists() and "1" in reports.read_text().split())
    client.send(CellStarted("die at the next report"))
    client.send(Sync(1, 5))
    assert isinstance(client.receive(), Synced)
    broker.process.terminate()
    assert broker.process.wait(30) == 0
    assert "ended with status 7" in broker.log.read_text()
    assert "cannot be killed" not in broker.log.read_text()


def test_one_user_has_no_more_sessions_than_one_user_may(start_broker):
    broker = start_broker(config=["c.JgpuBroker.max_user_sessions = 1"]).ready()
    open_session(broker, user="user1")
    refused = broker.client().hello(user="user1")
    assert (refused.reason, "user1 has 1 sessions" in refused.text) == (QuotaExceeded.reason, True)
    open_session(broker, user="user2")


@pytest.mark.parametrize("descriptors", [0, 2, 4, 5])
def test_a_hello_has_exactly_one_descriptor(broker, descriptors):
    refused = broker.client().hello(descriptors=descriptors)
    assert isinstance(refused, Refused)


def test_an_arena_must_be_what_it_is_said_to_be(broker):
    assert "were announced" in broker.client().hello(arena=4096).text


def test_a_silent_connection_is_dropped_after_the_deadline(start_broker):
    broker = start_broker(config=["c.JgpuBroker.handshake_timeout = 0.2"]).ready()
    assert broker.client().control_reply() is None


def test_garbage_gets_a_sentence_and_only_its_own_connection_ends(broker):
    other, _ = open_session(broker)
    client = broker.client()
    client.socket.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
    assert client.control_reply() == Refused("frame", "These bytes are not a jgpu frame.")
    assert client.receive() is None
    assert isinstance(other.receive(), Ready)


def test_many_silent_connections_of_one_uid_do_not_use_up_the_broker(broker):
    crowd = [Client(broker.address) for _ in range(200)]
    for client in crowd:
        client.close()
    # Until the broker has seen them go, one more of this uid is refused.
    assert until(lambda: status_or_none(broker))["devices"][0]["state"] == "ready"


def test_a_whole_course_gets_a_new_executor(broker):
    clients = [open_session(broker)[0] for _ in range(120)]
    for client in clients:
        assert isinstance(client.receive(), Ready)
    clients[0].send(CellStarted("crash"))
    for client in clients:
        assert isinstance(client.receive(), Resync)


def test_a_broker_that_runs_out_of_descriptors_refuses_and_recovers(start_broker):
    broker = start_broker(files=90, config=["c.JgpuBroker.handshake_timeout = 1.0"]).ready()
    clients = [broker.client() for _ in range(60)]
    assert 10 < sum(map(is_served, clients)) < 60
    for client in clients:
        client.close()
    until(lambda: status_or_none(broker) and not broker.status()["sessions"])
    open_session(broker)


def is_served(client):
    client.socket.settimeout(3.0)
    try:
        return isinstance(client.hello(), Welcome) and isinstance(client.receive(), Ready)
    except OSError:
        return False


def status_or_none(broker):
    try:
        return broker.status()
    except ConnectionError:
        assert broker.process.poll() is None
        return None


# -- the executor's device -------------------------------------------------------------------


def test_a_device_that_never_works_ends_a_hosts_broker_with_a_sentence(start_broker):
    broker = start_broker(script="fail")
    assert broker.process.wait(15) == 1
    assert "The self-test gave a wrong number." in broker.log.read_text()


@pytest.mark.parametrize(
    ("script", "sentence"),
    [
        ("fail", "The self-test gave a wrong number."),
        ("die", "ended with status 7"),
        ("garbage", "broke the protocol"),
    ],
)
def test_a_private_broker_tells_its_user_why_the_device_does_not_work(
    start_broker, script, sentence
):
    broker = start_broker("--private", script=script)
    until(lambda: broker.status()["devices"][0]["state"] == "failed")
    refused = broker.client().hello()
    assert refused.reason == BrokerRefused.reason
    assert sentence in refused.text


def test_auto_serves_from_the_cpu_when_the_gpu_fails_its_test(start_broker, monkeypatch, tmp_path):
    # What looks like a GPU here is a name in the driver's list.
    fake = tmp_path / "fake"
    fake.mkdir()
    (fake / "pynvml.py").write_text(
        "class NVMLError(Exception): pass\n"
        "def nvmlInit(): pass\n"
        "def nvmlShutdown(): pass\n"
        "def nvmlDeviceGetCount(): return 1\n"
        "def nvmlDeviceGetHandleByIndex(i): return i\n"
        "def nvmlDeviceGetMigMode(i): raise NVMLError  # as of GPUs that cannot be parted\n"
        f"def nvmlDeviceGetUUID(i): return 'GPU-test-{os.getpid()}'\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(fake))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    broker = start_broker(device="auto", script="fail-cuda").ready()
    device = broker.status()["devices"][0]
    assert device["kind"] == "cpu"
    assert device["note"] == (
        "The GPU cannot be used, so the CPU serves instead: The self-test gave a wrong number."
    )


def test_an_executor_that_dies_too_often_is_left_alone_for_a_while(start_broker):
    broker = start_broker("--private", config=["c.JgpuBroker.crash_limit = 1"]).ready()
    first, _ = open_session(broker)
    assert isinstance(first.receive(), Ready)
    first.send(CellStarted("crash"))
    assert isinstance(first.receive(), Resync)
    second, _ = open_session(broker)
    assert isinstance(second.receive(), Ready)
    second.send(CellStarted("crash"))
    until(lambda: broker.status()["devices"][0]["state"] == "failed")
    assert isinstance(broker.client().hello(), Refused)
    assert second.receive() is None
    assert not broker.status()["sessions"]


# -- life ------------------------------------------------------------------------------------


def test_sigterm_ends_broker_and_executor_and_removes_the_socket(broker):
    executor = broker.status()["devices"][0]["pid"]
    client, _ = open_session(broker)
    assert isinstance(client.receive(), Ready)
    assert broker.stop() == 0
    assert not broker.address.path.exists()
    assert not Path(f"/proc/{executor}").exists()


def test_an_executor_that_will_not_stop_is_killed(start_broker):
    broker = start_broker(script="stubborn").ready()
    executor = broker.status()["devices"][0]["pid"]
    os.kill(executor, signal.SIGSTOP)
    assert broker.stop() == 0
    assert not Path(f"/proc/{executor}").exists()


def test_the_executor_ends_when_the_control_process_is_killed(broker):
    executor = broker.status()["devices"][0]["pid"]
    broker.process.kill()
    broker.process.wait()
    until(lambda: not Path(f"/proc/{executor}").exists() or zombie(executor))


def zombie(pid):
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"


def test_the_owner_may_stop_the_broker(broker):
    assert broker.ask(AskStop()) == Stopping()
    assert broker.process.wait(15) == 0


def test_a_private_broker_ends_when_unused_and_not_before(start_broker):
    broker = start_broker("--private", "--idle", "2").ready()
    ticket = broker.take_seat()
    client, _ = open_session(broker)
    assert isinstance(client.receive(), Ready)
    broker.ask(LeaveSeat(ticket))
    time.sleep(2.5)  # nothing may happen in this time: there is no condition to wait for
    assert broker.process.poll() is None
    client.send(Quit())
    assert broker.process.wait(15) == 0
    assert not broker.address.path.exists()


def test_a_stale_socket_is_replaced_and_a_live_one_refused(start_broker, broker):
    second = start_broker(wait=False)
    assert second.process.wait(15) == 1
    assert f"A broker (pid {broker.process.pid}) serves at" in second.log.read_text()
    broker.process.kill()
    broker.process.wait()
    assert broker.address.path.exists()
    third = start_broker().ready()
    assert third.status()["broker"]["pid"] == third.process.pid


def test_of_many_brokers_that_start_together_one_serves(start_broker):
    brokers = [start_broker(wait=False) for _ in range(3)]
    until(lambda: sum(b.process.poll() is None for b in brokers) == 1)
    winner = next(b for b in brokers if b.process.poll() is None).ready()
    assert winner.ask(AskStatus())


def modes(broker):
    """Who may connect: at the users' socket, at the administrators'."""
    return [path.stat().st_mode & 0o777 for path in (broker.users.path, broker.address.path)]


def test_each_socket_is_the_owners_alone_or_a_groups(start_broker, broker):
    assert modes(broker) == [0o600, 0o600]
    broker.stop()
    name = grp.getgrgid(os.getgid()).gr_name
    shared = start_broker("--group", name).ready()
    assert modes(shared) == [0o660, 0o600]
    assert shared.users.path.stat().st_gid == os.getgid()
    shared.stop()
    assert modes(start_broker("--group", name, "--admin-group", name).ready()) == [0o660, 0o660]


@pytest.mark.parametrize("name", ["broker.sock", "admin.sock"])
def test_a_socket_that_somebody_removes_is_made_again(broker, name):
    client, _ = open_session(broker)
    path = broker.users.path.with_name(name)
    for removed in ((path,), (path, path.with_name(path.name + ".lock"))):
        before = path.stat()
        for file in removed:
            file.unlink()
        until(lambda was=before: path.exists() and path.stat().st_ino != was.st_ino)
        assert path.stat().st_mode & 0o777 == 0o600
        (row,) = broker.status()["sessions"]
        assert row["id"] == 1
    client.send(Sync(1, 5))
    assert isinstance(client.receive(), Ready)
    assert client.receive() == Synced(5)


def test_a_name_that_another_took_is_left_to_it(tmp_path):
    path = tmp_path / "s"
    first = Listener(path)
    path.unlink()
    path.with_name("s.lock").unlink()
    second = Listener(path)
    assert first.is_gone
    assert not second.is_gone
    with pytest.raises(ConfigError, match="serves at"):
        first.renew()
    first.close()
    assert path.is_socket()
    second.close()
    assert not path.exists()


def test_a_socket_listens_before_it_has_its_name(tmp_path, monkeypatch):
    path, listens = tmp_path / "sock", socket.socket.listen

    def listen(made, *backlog):
        assert not path.exists()
        listens(made, *backlog)

    monkeypatch.setattr(socket.socket, "listen", listen)
    left = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    left.bind(str(tmp_path / "soc~"))  # by a broker that was killed before it listened
    left.close()
    listener = Listener(path)
    path.unlink()
    listener.renew()
    assert sorted(each.name for each in tmp_path.iterdir()) == ["sock", "sock.lock"]
    listener.close()


def test_a_file_of_somebody_s_where_a_socket_is_made_is_left(tmp_path):
    (tmp_path / "soc~").write_text("precious")
    with pytest.raises(ConfigError, match="cannot be made: Address already in use"):
        Listener(tmp_path / "sock")
    assert (tmp_path / "soc~").read_text() == "precious"
    assert not (tmp_path / "sock").exists()


def test_unsafe_places_for_a_socket_are_refused(tmp_path):
    open_to_all = tmp_path / "open"
    open_to_all.mkdir()
    open_to_all.chmod(0o777)
    with pytest.raises(ConfigError, match="can be written by others"):
        Listener(open_to_all / "s")
    (tmp_path / "file").write_text("precious")
    with pytest.raises(ConfigError, match="is no socket"):
        Listener(tmp_path / "file")
    assert (tmp_path / "file").read_text() == "precious"
    with pytest.raises(ConfigError, match="longer than the 107 bytes"):
        Listener(tmp_path / ("x" * 120))
    with pytest.raises(ConfigError, match="no group"):
        Listener(tmp_path / "s", "no-such-group-here")
