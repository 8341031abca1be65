"""Whoever wants to be somebody else at the broker: each way that a student could think of.

They run as users of a real hub's host, in user, process and mount namespaces as containers have.
"""

import json
import sys
from pathlib import Path

import processes
import pytest
import walls
from lab import BROKER_UID, Lab, until
from uid_spawner import GROUP

from jgpu.wire.asking import ask
from jgpu.wire.limits import PROTOCOL
from jgpu.wire.messages import AskEvents, MakeSocket, RemoveSocket, TakeSeat
from jgpu.wire.reports.records import decode_events

pytestmark = [pytest.mark.slow, pytest.mark.e2e, pytest.mark.usefixtures("needs_lab")]

USERS = {"user1": ["class"], "user2": ["class"]}
_PROGRAM = Path(__file__).with_name("attempts.py")
#: root of a container that has no user namespace
IN_A_CONTAINER = ("unshare", "--pid", "--fork", "--mount-proc", "--uts", "--ipc")
#: root of a rootless container
ROOTLESS = ("unshare", "--user", "--map-root-user", "--pid", "--fork", "--mount-proc")


@pytest.fixture(scope="module")
def lab(needs_lab):
    with Lab(USERS) as made:
        made.start_servers(*USERS)
        kernels = {user: made.kernel(user, f"of-{user}.ipynb") for user in USERS}
        for kernel in kernels.values():
            kernel.ok("import torch; kept = torch.ones(1000, device='cuda'); kept.sum().item()")
        made.kernels = kernels
        yield made


def attempt(lab, uid, name, argument="", *, through=None, at=(), within=()):
    """What comes of an attempt by this uid; `at`: mounts, `within`: namespaces of its own."""
    socket = through or lab.address.path
    command = [sys.executable, str(_PROGRAM), str(socket), name, str(argument)]
    command = walls.as_user(uid, [*within, *command], GROUP) if uid else [*within, *command]
    done = processes.run(
        walls.opened(command, *at),
        capture_output=True,
        text=True,
        cwd="/",
        env=lab.environ | {"HOME": "/", "JUPYTERHUB_USER": "user2", "JGPU_USER": "user2"},
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def recorded(lab, kind, who, about="", door="users"):
    """Wait until the audit log has this."""

    def found():
        events = decode_events(ask(lab.admin, AskEvents(limit=200)).json).events
        return any(
            (each.kind, each.who, each.about, each.door) == (kind, who, about, door)
            for each in events
        )

    until(found, f"{kind} of {who} in the audit log")


def sessions(lab):
    return {each.user: each.id for each in lab.report().sessions}


ADMINISTRATION = ("quota", "policy", "stop", "name", "make", "remove", "sockets")
#: uid, namespaces, and who that is on record
WHO = {
    "a student": (20001, (), "user1"),
    "root of a container": (0, IN_A_CONTAINER, "root"),
    "root of a rootless container": (20002, ROOTLESS, "user2"),
    "the broker's own uid": (BROKER_UID, (), f"uid{BROKER_UID}"),
}


@pytest.mark.parametrize("name", ADMINISTRATION)
@pytest.mark.parametrize("who", WHO)
def test_nobody_administers_by_the_users_socket(lab, who, name):
    uid, within, known_as = WHO[who]
    at = [(lab.address.path.parent, "/run/jgpu")]
    through = "/run/jgpu/broker.sock"
    found = attempt(lab, uid, name, "user1/", through=through, at=at, within=within)
    assert "nly an administrator may" in found["refused"]
    recorded(lab, "refusal", known_as)


@pytest.mark.parametrize("who", WHO)
def test_nobody_takes_anothers_session_away(lab, who):
    uid, within, known_as = WHO[who]
    victim = "user1" if known_as == "user2" else "user2"
    found = attempt(lab, uid, "evict", sessions(lab)[victim], within=within)
    assert "refused" in found
    found = attempt(lab, uid, "look", victim, within=within)
    assert "refused" in found
    recorded(lab, "refusal", known_as)


def test_a_student_may_not_open_the_administrators_socket(lab):
    found = attempt(lab, 20001, "quota", through=lab.admin.path)
    assert "You (user 20001) may not connect" in found["refused"]


@pytest.mark.parametrize(
    "within", [(), ROOTLESS, ("unshare", "--user", "--map-user=990")], ids=["", "rootless", "990"]
)
def test_names_of_ones_own_count_for_nothing_nor_does_another_pid_or_namespace(lab, within):
    at = [(lab.address.path.parent, "/run/jgpu")]
    found = attempt(lab, 20001, "who", through="/run/jgpu/broker.sock", at=at, within=within)
    assert found == {"user": "user1", "sees": ["user1"]}
    recorded(lab, "claim", "user1", "user2")


def test_what_a_cell_says_of_itself_counts_for_nothing(lab):
    lab.kernels["user1"].ok(
        "import os, subprocess, sys\n"
        "os.environ |= {'JUPYTERHUB_USER': 'user2', 'JGPU_USER': 'user2', 'USER': 'user2',"
        " 'LOGNAME': 'user2', 'KERNEL_USERNAME': 'user2'}\n"
        "held = subprocess.Popen([sys.executable, '-c', 'import torch; kept = torch.ones(5,"
        ' device="cuda"); print(kept.sum().item(), flush=True); input()\'],'
        " stdin=-1, stdout=-1)\n"
        "assert held.stdout.readline() == b'5.0\\n'"
    )
    assert sorted(each.user for each in lab.report().sessions) == ["user1", "user1", "user2"]
    lab.kernels["user1"].ok("held.communicate(b'\\n')")


def test_anothers_ticket_opens_nothing(lab):
    ticket = lab.kernels["user2"].ok("import os; print(os.environ['JGPU_TICKET'])")
    assert len(ticket) > 20
    assert attempt(lab, 20001, "ticket", ticket) == {"user": "user1"}
    assert attempt(lab, 20001, "leave", ticket) == {"reply": "SeatTaken"}
    recorded(lab, "ticket", "user1", "user2")
    assert lab.kernels["user2"].ok("print(kept.sum().item())") == "1000.0"


def test_anothers_token_is_no_name(lab):
    token = lab.kernels["user2"].ok("import os; print(os.environ['JUPYTERHUB_API_TOKEN'])")
    found = lab.kernels["user1"].ok(
        f"import os; os.environ['JUPYTERHUB_API_TOKEN'] = {token!r}\n"
        "import subprocess, sys\n"
        "print(subprocess.run([sys.executable, '-m', 'jgpu', 'quota', 'usage'], text=True,"
        " capture_output=True).stdout)"
    )
    assert "user1" in found
    assert "user2" not in found


def test_a_neighbours_socket_cannot_be_reached_from_outside_its_container(lab):
    made = {
        user: Path(ask(lab.admin, MakeSocket(f"{user}/", user, ("class",))).path) for user in USERS
    }
    try:
        assert "ermission denied" in attempt(lab, 20001, "who", through=made["user2"])["refused"]
        own, other = made["user1"].parent, made["user2"]
        at = [(own, "/run/jgpu")]
        for uid, within in ((1000, ()), (0, IN_A_CONTAINER), (1000, ROOTLESS)):
            found = attempt(lab, uid, "who", through="/run/jgpu/broker.sock", at=at, within=within)
            assert found == {"user": "user1", "sees": ["user1"]}
        assert "refused" in attempt(lab, 1000, "who", through=other, at=at)
        ticket = ask(
            lab.admin.__class__(made["user2"], "environment"), TakeSeat(PROTOCOL, "kernel")
        ).ticket
        found = attempt(lab, 0, "ticket", ticket, through="/run/jgpu/broker.sock", at=at)
        assert found == {"user": "user1"}
        recorded(lab, "ticket", "user1", "user2", door="server")
    finally:
        for user in USERS:
            ask(lab.admin, RemoveSocket(f"{user}/"))


def test_whoever_visits_a_shared_server_is_its_owner_there_and_nobody_more(lab):
    """A Hub's administrator on a student's server has the student's part of the GPU."""
    token = lab.token_of("user2")
    visitor = lab.kernels["user1"]
    assert visitor.request("GET", "/api/kernels").status_code == 200
    stranger = lab.request_as(token, "user1", "/api/kernels")
    assert stranger.status_code == 403
    found = visitor.ok(
        "import subprocess, sys\n"
        "done = subprocess.run([sys.executable, '-m', 'jgpu', 'policy', 'fifo'], text=True,"
        " capture_output=True)\nprint(done.returncode, done.stderr)"
    )
    assert found.startswith("1 ")
    recorded(lab, "refusal", "user1")
    assert lab.report().devices[0].policy == "fair"


def test_a_spawner_that_gives_all_the_same_uid_ends_the_hub_with_a_sentence(lab, tmp_path):
    configuration = tmp_path / "jupyterhub_config.py"
    configuration.write_text(
        "c.JupyterHub.spawner_class = 'simple'\nimport jgpu.hub\njgpu.hub.configure(c)\n"
    )
    done = processes.run(
        [sys.executable, "-m", "jupyterhub", "-f", str(configuration)],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=lab.environ,
    )
    assert done.returncode != 0
    assert "any user could take any other's name" in done.stderr
