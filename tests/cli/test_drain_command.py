"""`jgpu drain` against a broker that is real, and others that never come to an end."""

import msgspec
import pytest
from real_broker import status, until

from jgpu.cli import main
from jgpu.wire.messages import Done, Drain, StatusIs, Watch
from jgpu.wire.reports.report import BrokerReport, Report, SessionReport


def shows(state, waits_for=()):
    broker = BrokerReport(drain=state, drain_waits_for=waits_for)
    rows = (SessionReport(id=3, user="user1"),)
    return StatusIs(msgspec.json.encode(Report(broker=broker, sessions=rows)))


@pytest.mark.slow
def test_a_drain_is_waited_for_and_ended(broker, capsys):
    until(lambda: status(broker)["devices"][0]["state"] == "ready")
    assert main(["drain", "--wait"]) == 0
    said = capsys.readouterr().out
    assert "No iteration begins from now on" in said
    assert "stopping interrupts nobody" in said
    assert main(["status"]) == 0
    assert "stopping interrupts nobody" in capsys.readouterr().out
    assert main(["drain", "--end"]) == 0
    assert "whoever waits goes on" in capsys.readouterr().out


def test_what_is_waited_for_is_said_and_a_drain_that_somebody_ended_is_an_error(control, capsys):
    control.replies = {Drain: Done("It is."), Watch: shows("draining", (3, 4))}
    assert main(["drain", "--wait"]) == 1  # this broker ends the connection
    said = capsys.readouterr()
    assert said.out == "It is.\nWaiting for session 3 (user1), 4 (ending).\n"
    control.replies[Watch] = shows("")
    assert main(["drain", "--wait"]) == 1
    assert "Somebody else has ended the drain" in capsys.readouterr().err


def test_whoever_waits_no_longer_is_told_that_it_goes_on(control, capsys):
    control.replies = {Drain: Done("It is."), Watch: shows("draining", (3,))}
    assert main(["drain", "--wait", "--timeout", "0"]) == 1
    assert "is not over after 0 s, and goes on" in capsys.readouterr().err


def test_another_answer_is_an_error(control):
    control.replies = {Drain: shows("")}
    assert main(["drain"]) == 1
