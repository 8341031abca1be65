"""`jgpu status`, `jgpu top --once` and `jgpu doctor` against a broker that is real."""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

import msgspec
import processes
import pytest
from real_broker import real_broker
from rich.console import Console

from jgpu import terminal
from jgpu.cli import doctor, main
from jgpu.cli.top import looks
from jgpu.errors import BrokerUnreachable
from jgpu.wire.address import Address, admin_socket
from jgpu.wire.asking import ask
from jgpu.wire.messages import AskStatus, MakeSocket, Refused, StatusIs, Watch
from jgpu.wire.reports.report import decode

STATUS = {
    "devices": [
        {
            "name": "cpu (shared)",
            "kind": "cpu",
            "state": "ready",
            "note": "The GPU cannot be used.",
            "capacity_bytes": 4 << 30,
            "used_bytes": 1 << 20,
            "policy": "fair",
            "lanes": [{"id": 0, "capacity_bytes": 1, "sessions": [1], "running": 1}],
            "restarts": 0,
        }
    ],
    "sessions": [
        {
            "id": 1,
            "user": "[red]user1",
            "label": "very/" * 20 + "lesson.ipynb",
            "cell": "In [3]",
            "state": "waiting",
            "lane": 0,
            "queue_position": 2,
            "ahead": 2,
            "waits_for": ["user2"],
            "resident_bytes": 3 << 20,
            "ephemeral_bytes": 0,
            "spilled_bytes": 0,
            "device_seconds": 75.0,
            "iterations": 12,
            "iteration_seconds": {"median": 0.0125, "p95": 0.014},
        }
    ],
}


def drawn(status, width=200):
    console = Console(width=width, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    with console.file:
        report = decode(msgspec.json.encode({"broker": {}, **status}))
        console.print(terminal.report(report))
        return console.export_text()


def test_the_tables_say_what_the_report_says_and_take_no_markup_from_users():
    text = drawn(STATUS)
    for part in ("cpu (shared)", "1 MiB", "4 GiB", "The GPU cannot be used.", "[red]user1"):
        assert part in text
    assert "waiting (2 ahead) for user2" in text
    assert "lesson.ipynb" in text
    assert "1:15" in text
    assert "12.5 ms" in text


def test_a_narrow_terminal_shows_whole_columns_and_names_the_others():
    text = drawn(STATUS, width=80)
    lines = text.splitlines()
    assert all(len(line) <= 80 for line in lines)
    (head,) = [line for line in lines if "USER" in line]
    assert {"ID", "USER", "STATE", "RESIDENT", "EPHEMERAL", "TIME"} <= set(head.split())
    assert "No room here for CELL, LANE, ITER, EACH." in text
    assert "…esson.ipynb" in text
    assert "3 MiB" in text
    assert "1:15" in text


def test_lanes_are_told_of_where_their_work_does_not_end():
    usual = STATUS["devices"][0]["lanes"][0]

    def said(**lane):
        device = STATUS["devices"][0] | {"lanes": [usual | lane]}
        return drawn(STATUS | {"devices": [device]})

    assert "Lane" not in said(state="open", running_seconds=59.0, op="aten::mm")
    text = said(state="open", running_seconds=75.0, op="aten::mm")
    assert "Lane 0 has been at aten::mm of session 1 for 1:15." in text
    assert "at one piece of work of session 1 for" in said(running_seconds=75.0, op="")
    assert "Lane 0 has been given up, for aten::mm" in said(state="retired", op="aten::mm")


def test_no_sessions_is_said():
    assert "No sessions." in drawn(STATUS | {"sessions": []})


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    """A broker without a device to wait for: its executor is never ready."""
    directory = tmp_path_factory.mktemp("broker")
    config = directory / "config.py"
    wait = [sys.executable, "-c", "import signal; signal.pause()"]
    config.write_text(
        f"c.JgpuBroker.executor_command = {wait!r}\nc.JgpuBroker.spool = {str(directory / 's')!r}\n"
    )
    path = directory / "broker.sock"
    words = ["--config", str(config), "--socket", str(path), "--device", "null", "--private"]
    process = processes.start(
        [sys.executable, "-m", "jgpu", "broker", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    with process:
        assert b"Listening" in process.line()
        yield Address(path, "environment")
        process.end()


@pytest.fixture
def environ(address, monkeypatch):
    monkeypatch.setenv("JGPU_ADDRESS", str(address))


@pytest.mark.usefixtures("environ")
def test_status_as_json_is_the_whole_report(capsys):
    assert main(["status", "--json"]) == 0
    status = json.loads(capsys.readouterr().out)
    assert status["sessions"] == []
    device = status["devices"][0]
    assert {"name", "kind", "capacity_bytes", "policy", "lanes"} <= device.keys()


@pytest.mark.usefixtures("environ")
@pytest.mark.parametrize("command", [["status"], ["top", "--once"], ["top"]])
def test_tables_are_printed(command, capsys):
    assert main(command) == 0
    out = capsys.readouterr().out
    assert "Devices" in out
    assert "No sessions." in out


def test_an_absent_broker_is_a_sentence(monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("JGPU_ADDRESS", f"unix:{tmp_path}/nobody")
    assert main(["status"]) == 1
    assert "There is no broker at" in capsys.readouterr().err


def test_top_shows_what_changes_and_waits_for_a_broker_that_ended(tmp_path):
    with real_broker(tmp_path, "--device", "null") as address:
        seen = looks(address, 0.1)
        assert next(seen).broker.socket == str(address.path)
    while not isinstance(ended := next(seen), BrokerUnreachable):
        pass
    assert str(address.path) in str(ended)
    seen.close()


def test_top_asks_a_broker_that_is_older_again_and_again(control):
    control.replies = {
        Watch: Refused("frame", "A frame holds no message that is known here."),
        AskStatus: StatusIs(b'{"broker": {"version": "0.1"}}'),
    }
    seen = looks(Address(control.path, "environment"), 0.01)
    assert [next(seen).broker.version for _ in range(2)] == ["0.1", "0.1"]
    assert [type(request) for request in control.requests] == [Watch, AskStatus] * 2
    seen.close()


# -- doctor ----------------------------------------------------------------------------------


def findings(check):
    return [(finding.subject, finding.state) for finding in check()]


def test_doctor_knows_the_supported_versions_of_torch():
    assert ("torch", "ok") in findings(doctor.check_torch)


def test_doctor_sees_an_autoload_that_is_switched_off(monkeypatch):
    monkeypatch.setenv("TORCH_DEVICE_BACKEND_AUTOLOAD", "0")
    assert ("autoload", "problem") in findings(doctor.check_torch)


@pytest.mark.usefixtures("environ")
def test_doctor_asks_the_broker():
    assert findings(doctor.check_broker)[:2] == [("address", "ok"), ("broker", "ok")]


def test_doctor_says_that_a_named_broker_is_absent(monkeypatch, tmp_path):
    monkeypatch.setenv("JGPU_ADDRESS", f"unix:{tmp_path}/nobody")
    assert findings(doctor.check_broker)[-1] == ("broker", "problem")
    assert main(["doctor"]) == 1


def test_doctor_says_that_ones_own_broker_is_started_when_needed():
    assert findings(doctor.check_broker)[-1] == ("broker", "note")


def test_doctor_knows_what_lies_where_a_socket_should_be(monkeypatch, tmp_path):
    path = tmp_path / "file"
    path.touch()
    monkeypatch.setenv("JGPU_ADDRESS", f"unix:{path}")
    assert findings(doctor.check_broker)[1:] == [("socket", "problem")]


def test_doctor_finds_nothing_wrong_with_a_socket_that_was_made_for_one_server(monkeypatch):
    """Everybody in a server's container may connect to it, and nobody else gets there."""
    with (
        tempfile.TemporaryDirectory(prefix="jgpu-") as name,  # a socket's path is short
        real_broker(
            Path(name), "--device", "null", "--spool", f"{name}/spool", private=False
        ) as found,
    ):
        admin = Address(admin_socket(found.path), "environment")
        made = ask(admin, MakeSocket("user1/", "user1", ()), 15)
        monkeypatch.setenv("JGPU_ADDRESS", f"unix:{made.path}")
        assert findings(doctor.check_broker)[:3] == [
            ("address", "ok"), ("socket", "ok"), ("broker", "ok"),
        ]  # fmt: skip


def test_doctor_explains_each_problem(monkeypatch, capsys):
    monkeypatch.setenv("JGPU_ADDRESS", "tcp://host")
    assert main(["doctor", "--json"]) == 1
    made = json.loads(capsys.readouterr().out)
    broken = next(finding for finding in made if finding["subject"] == "broker")
    assert "has to read unix:" in broken["text"]


def test_a_check_that_fails_is_a_finding(monkeypatch):
    def broken():
        raise ValueError("oh")
        yield

    monkeypatch.setattr(doctor, "CHECKS", (broken,))
    assert doctor.examine() == [
        doctor.Finding("broken", "problem", "Could not be looked at: ValueError: oh")
    ]
