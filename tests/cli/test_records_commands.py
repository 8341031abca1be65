"""`jgpu events` and `jgpu usage` against a broker that is real, and one that is scripted."""

import csv
import datetime
import io
import json

import msgspec
import pytest
from rich.console import Console

from jgpu.cli import events, main, usage
from jgpu.wire.address import Address
from jgpu.wire.messages import AskEvents, AskUsage, Done, EventsAre, UsageIs
from jgpu.wire.reports.records import EventReport, EventsReport, UsageReport, UsageRow


def drawn(table):
    console = Console(width=150, record=True, file=io.StringIO())
    console.print(table)
    return console.export_text()


@pytest.mark.usefixtures("broker")
def test_what_happened_is_shown_and_for_programs_too(capsys):
    assert main(["policy", "fifo"]) == 0
    capsys.readouterr()
    assert main(["events"]) == 0
    shown = capsys.readouterr().out
    assert shown.index("The broker began") < shown.index("The policy is fifo")
    assert main(["events", "--json", "-n", "1"]) == 0
    (last,) = json.loads(capsys.readouterr().out)["events"]
    assert (last["kind"], last["door"]) == ("policy", "owner")
    assert main(["events", "--user", "nobody-of-that-name"]) == 0
    assert "Nothing is on record." in capsys.readouterr().out


@pytest.mark.usefixtures("broker")
def test_nobody_has_used_anything_of_a_new_broker(capsys):
    assert main(["usage"]) == 0
    assert "Nobody used anything." in capsys.readouterr().out
    assert main(["usage", "--by", "group", "--days", "2", "--csv"]) == 0
    assert capsys.readouterr().out == "day,group,device_seconds\n"


def test_names_and_texts_are_no_markup():
    shown = drawn(events._table([EventReport(id=1, who="[red]x", about="[b]", text="[i]No[/i]")]))
    assert "[red]x" in shown
    assert "[i]No[/i]" in shown
    assert "[red]x" in drawn(usage._table([(datetime.date(2026, 1, 2), "[red]x", 1.0)], "user"))


def test_days_are_asked_for_one_by_one_and_shown_by_name(control, capsys):
    row = UsageRow(start=0.0, name="user1", device_seconds=1.5)
    told = msgspec.json.encode(UsageReport(rows=(row,), note="There is more."))
    control.replies = {AskUsage: UsageIs(told)}
    assert main(["usage", "--days", "3", "--csv"]) == 1  # it is not all
    said = capsys.readouterr()
    today = datetime.date.today()
    days = [(today - datetime.timedelta(days=ago)).isoformat() for ago in (2, 1, 0)]
    rows = list(csv.reader(io.StringIO(said.out)))
    assert rows[1:] == [[day, "user1", "1.500"] for day in days]
    assert said.err == "There is more.\n"
    asked = control.requests
    assert [request.until for request in asked[:-1]] == [request.since for request in asked[1:]]
    assert all(request.step == request.until - request.since for request in asked)
    assert main(["usage", "--days", "1"]) == 1
    assert "1.5 s" in capsys.readouterr().out


def test_usage_that_cannot_be_read_is_not_nothing(control, capsys):
    told = UsageReport(note="Usage cannot be read just now.")
    control.replies = {AskUsage: UsageIs(msgspec.json.encode(told))}
    assert main(["usage"]) == 1
    assert capsys.readouterr() == ("", "Usage cannot be read just now.\n")


def test_many_events_are_asked_for_in_pages(control):
    page = tuple(EventReport(id=number) for number in range(900, 400, -1))
    told = EventsReport(events=page, note="Older events cannot be read just now.")
    control.replies = {AskEvents: EventsAre(msgspec.json.encode(told))}
    found = events.ask_events(Address(control.path, "environment"), 1000)
    assert (len(found.events), found.note) == (1000, told.note)
    assert [(request.before, request.limit) for request in control.requests] == [
        (0, 500),
        (401, 500),
    ]


@pytest.mark.parametrize(("words", "request_"), [(["events"], AskEvents), (["usage"], AskUsage)])
def test_another_answer_is_an_error(control, words, request_):
    control.replies = {request_: Done("What?")}
    assert main(words) == 1


@pytest.mark.parametrize("words", [["events", "-n", "0"], ["usage", "--days", "x"]])
def test_numbers_that_are_none_are_refused(words):
    with pytest.raises(SystemExit):
        main(words)
