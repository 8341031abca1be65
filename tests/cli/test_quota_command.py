"""`jgpu quota` against a broker that is real; what `jgpu status` and `jgpu doctor` add to it."""

import json
import time
from datetime import UTC, datetime

import msgspec
import pytest
from rich.console import Console

from jgpu import terminal
from jgpu.cli import doctor, main, quota
from jgpu.errors import ConfigError
from jgpu.wire.reports.report import LedgerReport, decode, decode_quotas

USER = {
    "name": "[red]user1",
    "groups": ["a", "b", "c", "d", "e"],
    "sessions": 1,
    "weight": 2.0,
    "quota": {
        "weight": 2.0,
        "memory": 4 << 30,
        "resident": 0,
        "device_seconds": 7200.0,
        "period": 86400.0,
        "sessions": 3,
        "priority": "normal",
        "over_budget": "deny",
    },
    "used_in_period": 7300.5,
    "state": "denied",
    "free_at": 1_000_000_000.0,
    "text": "user1 has used 7300 of 7200 device-seconds.",
}
LEDGER = {
    "state": "failing",
    "text": "The usage ledger (sqlite:///x) cannot be used: database is locked.",
    "url": "sqlite:///x",
    "unwritten_rows": 3,
    "unwritten_device_seconds": 12.0,
}
REPORT = {
    "scopes": [{"scope": "default", "source": "live", "settings": {"memory": 4 << 30}}],
    "users": [USER],
    "ledger": LEDGER,
}


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    from real_broker import real_broker

    directory = tmp_path_factory.mktemp("broker")
    spool = str(directory / "spool")
    with real_broker(directory, "--device", "null", "--spool", spool) as found:
        yield found


@pytest.fixture
def run(address, monkeypatch, capsys):
    """What a command prints, and how it ends."""
    monkeypatch.setenv("JGPU_ADDRESS", str(address))
    monkeypatch.setenv("COLUMNS", "200")

    def command(*words):
        status = main(["quota", *words])
        said = capsys.readouterr()
        return status, said.out, said.err

    return command


def test_what_is_set_is_listed_and_can_be_taken_out_again(run):
    assert run("list")[1].startswith("Nothing is set.")
    status, out, _ = run("set", "user:root", "weight=2", "memory=4G", "device_seconds=2h")
    assert status == 0
    assert "user:root" in out
    assert "weight=2  memory=4G  device_seconds=2h" in out
    assert "2h in 1d, then throttle" in run("list")[1]
    assert run("set", "default", "sessions=9")[0] == 0
    assert "memory=4G  device_seconds=2h" in run("unset", "user:root", "weight")[1]
    run("unset", "user:root")
    scopes = json.loads(run("list", "--json")[1])["scopes"]
    said = {"scope": "default", "source": "live", "settings": {"sessions": 9}, "until": 0.0}
    assert scopes == [said]
    assert run("unset", "default")[1].startswith("Nothing is set.")


def test_what_is_set_until_a_moment_is_listed_with_it(run):
    status, out, _ = run("set", "user:root", "memory=4G", "--until", "+2h")
    assert status == 0
    assert out.split()[:4] == ["SCOPE", "FROM", "SETTINGS", "UNTIL"]
    (scope,) = json.loads(run("list", "--json")[1])["scopes"]
    assert 7100 < scope["until"] - time.time() <= 7200
    assert time.strftime("%Y-%m-%d %H:%M", time.localtime(scope["until"])) in run("list")[1]
    run("unset", "user:root")


NOON = datetime(2026, 11, 22, 12, 0).timestamp()


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("+2h", NOON + 7200),
        ("+ 90", NOON + 90),
        ("18:00", datetime(2026, 11, 22, 18, 0).timestamp()),
        ("2026-11-23 18:00", datetime(2026, 11, 23, 18, 0).timestamp()),
        ("2026-11-23", datetime(2026, 11, 23).timestamp()),
        ("2026-11-23T18:00+00:00", datetime(2026, 11, 23, 18, 0, tzinfo=UTC).timestamp()),
    ],
)
def test_moments_are_read_as_people_write_them(text, moment):
    assert quota.read_moment(text, NOON) == moment


@pytest.mark.parametrize("text", ["", "tomorrow", "+soon", "+", "25:00", "2026-13-01", "2h"])
def test_what_is_no_moment_is_said_with_an_example(text):
    with pytest.raises(ConfigError, match=r"is no moment; write it like 2026-11-23 18:00, 18:00"):
        quota.read_moment(text, NOON)


def test_usage_is_shown_for_all_and_for_one(run):
    status, out, _ = run("usage", "root")
    assert status == 0
    assert out.split()[:7] == ["USER", "USED", "OF", "PERIOD", "STATE", "FREE", "AT"]
    assert "0.000 s" in out
    assert json.loads(run("usage", "--json")[1])["ledger"]["state"] == "working"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("set", "user:root", "weight=0"), "weight is 0.0; it must be from 0.001 to 1000."),
        (("set", "user:root", "memory=-1"), "'-1' is no size"),
        (("set", "user:root", "weight=nan"), "weight is nan"),
        (("set", "user:root", "priority=urgent"), "it can be interactive, normal, batch."),
        (("set", "user:root", "speed=1"), "There is no 'speed' in a quota"),
        (
            ("set", "user:root", "weight=2", "--until", "2001-01-01"),
            "that is past, or too far away",
        ),
        (("set", "user:root", "weight=2", "--until", "noon"), "'noon' is no moment"),
        # What a script's variable says that is not set: for good is something else.
        (("set", "user:root", "weight=2", "--until", ""), "'' is no moment"),
        (("set", "user:root", "weight"), "'weight' is no setting; write it like memory=4G."),
        (("set", "user:root", "weight="), "'weight=' is no setting"),
        (("set", "root", "weight=1"), "'root' is no scope; write default, group:NAME or user:NAME"),
        (("set", "user:nobody9", "weight=1"), "There is no user 'nobody9'"),
        (("set", "group:nobody9", "weight=1"), "There is no group 'nobody9'"),
        (("unset", "user:root", "speed"), "There is no 'speed' in a quota"),
        (("usage", "nobody9"), "There is no user 'nobody9'"),
    ],
)
def test_what_makes_no_sense_is_one_sentence_and_changes_nothing(run, words, said):
    status, out, err = run(*words)
    assert (status, out) == (1, "")
    assert err.startswith("jgpu quota: ")
    assert said in err
    assert json.loads(run("list", "--json")[1])["scopes"] == []


def test_the_status_of_a_broker_names_the_ledger_and_each_users_quota(address, monkeypatch, capsys):
    monkeypatch.setenv("JGPU_ADDRESS", str(address))
    assert main(["status", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["ledger"]["state"] == "working"
    assert any(f.subject == "usage ledger" and f.state == "ok" for f in doctor.check_broker())


# -- what people read ------------------------------------------------------------------------


def drawn(*parts):
    console = Console(width=200, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    with console.file:
        for part in parts:
            console.print(part)
        return console.export_text()


def test_tables_carry_numbers_and_take_no_markup_from_users():
    report = decode_quotas(msgspec.json.encode(REPORT))
    text = drawn(quota._quotas(report), quota._usage(report), *quota._notes(report))
    for part in ("[red]user1", "a, b, c, d, ...", "4G", "2h in 1d, then deny", "7300.500 s"):
        assert part in text
    for part in ("denied", "2001-09-0", "7300 of 7200", "database is locked"):
        assert part in text


def test_a_users_own_report_has_no_ledger():
    report = decode_quotas(msgspec.json.encode({"scopes": [], "users": [USER]}))
    assert [note.plain for note in quota._notes(report)] == [USER["text"]]


def test_the_status_table_says_who_is_beyond_a_budget_and_what_is_wrong_with_the_ledger():
    device = {
        "name": "cpu", "kind": "cpu", "state": "ready", "note": "", "capacity_bytes": 1,
        "used_bytes": 0, "policy": "fair", "lanes": [], "restarts": 0,
    }  # fmt: skip
    status = {"broker": {}, "devices": [device], "users": [USER], "ledger": LEDGER}
    text = drawn(terminal.report(decode(msgspec.json.encode(status))))
    assert USER["text"] in text
    assert LEDGER["text"] in text


@pytest.mark.parametrize(
    ("ledger", "state"),
    [
        (msgspec.UNSET, None),
        (LEDGER, "problem"),
        (LEDGER | {"state": "working"}, "note"),
        (LEDGER | {"state": "opening", "text": ""}, "ok"),
    ],
)
def test_the_doctor_looks_at_the_ledger(ledger, state):
    told = LedgerReport(**ledger) if ledger else ledger
    assert [finding.state for finding in doctor._ledger(told)] == ([state] if state else [])
