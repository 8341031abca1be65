"""Recordings: every event there and back, limits, and the sentence for a line that is none."""

import contextlib
import io
import json
import typing

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jgpu.errors import ConfigError
from jgpu.sched import CellStarted, Segment, SegmentsFinished, SessionOpened, WorkArrived, events
from jgpu.sched.reports import recording as recording_module
from jgpu.sched.reports.recording import (
    EVENTS,
    EventRecorder,
    Recorded,
    read_recording,
    write_event,
)

HEAD = '{"recording": "jgpu.sched", "version": 1, "policy": "fair"}'
TYPES = {
    int: st.integers(-(2**62), 2**62),
    float: st.floats(-1e18, 1e18),
    bool: st.booleans(),
    str: st.text(st.characters(codec="utf-8"), max_size=20),
    tuple[int, ...]: st.lists(st.integers(0, 2**40), max_size=5).map(tuple),
    int | None: st.none() | st.integers(0, 2**40),
    tuple[events.Segment, ...]: st.lists(
        st.builds(Segment, st.floats(0, 1e6), st.integers(0, 3)), max_size=6
    ).map(tuple),
}


def any_event():
    """Every kind of event with any fields."""
    kinds = []
    for kind in EVENTS.values():
        hints = typing.get_type_hints(kind)
        kinds.append(st.builds(kind, **{name: TYPES[hint] for name, hint in hints.items()}))
    return st.one_of(kinds)


def read(*lines):
    """The events of a recording of these lines."""
    return list(read_recording([HEAD, *lines], "run.jsonl")[1])


def refused(*lines, head=HEAD):
    """The sentence about a recording."""
    with pytest.raises(ConfigError) as caught:
        list(read_recording([head, *lines], "run.jsonl")[1])
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_the_set_of_events_is_that_of_the_core():
    assert {"WorkArrived", "SegmentsFinished", "SessionOpened"} <= set(EVENTS)
    assert not {"Event", "SessionEvent", "Segment"} & set(EVENTS)


@given(st.lists(st.tuples(any_event(), st.floats(0, 10)), max_size=8))
def test_what_is_written_is_read(told):
    sink, now, expected = io.StringIO(), 0.0, []
    recorder = EventRecorder(sink, "las")
    for line, (event, elapsed) in enumerate(told, start=2):
        now += elapsed
        recorder.note(event, now)
        expected.append(Recorded(now, event, line))
    header, found = read_recording(sink.getvalue().split("\n"), "run.jsonl")
    found = list(found)
    assert header.policy == "las"
    assert found == expected
    assert [each.event.cause for each in found] == [event.cause for event, _ in told]


@given(st.text(max_size=60) | st.binary(max_size=60).map(lambda data: data.decode("latin-1")))
def test_any_line_is_an_event_or_a_sentence(text):
    line = text.replace("\n", " ").replace("\r", " ")
    if line.strip():
        assert refused(line).startswith("run.jsonl, line 2: ")
    else:
        assert read(line) == []


@given(
    st.dictionaries(
        st.sampled_from(["at", "event", "session", "work", "segments", "ends_iteration", "cause"]),
        st.none()
        | st.sampled_from(sorted(EVENTS))
        | st.floats()
        | st.integers()
        | st.lists(st.lists(st.integers() | st.floats(), max_size=4), max_size=2),
    )
)
def test_any_object_is_an_event_or_a_sentence(fields):
    line = json.dumps(fields)
    with contextlib.suppress(ConfigError):
        assert [type(each.event) in EVENTS.values() for each in read(line)] == [True]


def test_equal_segments_are_written_once():
    event = WorkArrived(1, 2, (Segment(0.5, 7),) * 3 + (Segment(0.25, 0),), True)
    line = write_event(event, 1.5)
    assert line == (
        '{"at":1.5,"event":"WorkArrived","session":1,"work":2,'
        '"segments":[[0.5,7,3],[0.25,0]],"ends_iteration":true}'
    )
    assert read(line)[0].event == event


def test_defaults_are_left_out():
    assert write_event(SessionOpened(1, "user1"), 0.0) == (
        '{"at":0.0,"event":"SessionOpened","session":1,"user":"user1"}'
    )


def test_a_closed_recorder_takes_no_more():
    class Sink(io.StringIO):
        closings = 0

        def close(self):
            self.closings += 1

    sink = Sink()
    recorder = EventRecorder(sink, "fair")
    recorder.note(CellStarted(1), 1.0)
    recorder.close()
    recorder.close()
    recorder.note(CellStarted(1), 2.0)
    assert len(sink.getvalue().splitlines()) == 2
    assert sink.closings == 1


def test_blank_lines_are_allowed():
    line = write_event(SegmentsFinished(0, 1, 2, 3, 0.5), 1.0)
    assert [each.line for each in read("", line)] == [3]


def test_headers_that_are_none():
    assert refused(head="") == "run.jsonl, line 1: '' is no JSON: Input data was truncated."
    assert refused(head="[1]") == "run.jsonl, line 1: '[1]' is not a JSON object."
    assert "recording is None, where 'jgpu.sched' belongs" in refused(head="{}")
    assert "version is 9, but this jgpu reads 1" in refused(head=HEAD.replace("1", "9"))
    assert "policy is 3, where a name belongs" in refused(head=HEAD.replace('"fair"', "3"))
    with pytest.raises(ConfigError, match="line 1"):
        read_recording([], "run.jsonl")


def test_lines_that_are_no_events():
    assert refused('{"at": "x"}') == "run.jsonl, line 2: at is 'x', where seconds belong."
    early = write_event(CellStarted(1), 1.0)
    late = write_event(CellStarted(1), 2.0)
    assert refused(late, early) == (
        "run.jsonl, line 3: at is 1.0, which is before 2.0, the line above."
    )
    assert refused('{"at": 1, "event": "Boom"}') == (
        "run.jsonl, line 2: event is 'Boom', which is no event that there is."
    )
    assert "event is 3, which is no event" in refused('{"at": 1, "event": 3}')
    assert refused('{"at": 1, "event": "CellStarted"}') == (
        "run.jsonl, line 2: CellStarted without 'session'."
    )
    assert refused('{"at": 1, "event": "CellStarted", "session": 1, "x": 2}') == (
        "run.jsonl, line 2: x is 2, which CellStarted has not."
    )
    assert "Expected `int`, got `str`" in refused('{"at":1,"event":"CellStarted","session":"a"}')
    long = f'"{"u" * 2000}"'
    assert "longer than 1000" in refused(
        f'{{"at": 1, "event": "SessionOpened", "session": 1, "user": {long}}}'
    )
    assert "larger than" in refused(f'{{"at": 1, "event": "CellStarted", "session": {2**63}}}')
    assert "1000010 characters" in refused("x" * 1_000_010)


@pytest.mark.parametrize(
    ("segments", "said"),
    [
        ("3", "segments is 3, where [seconds, bytes] belong"),
        ("[[1]]", "segments is [1], where [seconds, bytes] belong"),
        ('[["a", 0]]', "segments is ['a', 0], where [seconds, bytes] belong"),
        ("[[1, 0.5]]", "segments is [1, 0.5], where [seconds, bytes] belong"),
        ("[[1, 0, 0]]", "segments is [1, 0, 0], where [seconds, bytes] belong"),
        ("[[1, 0, 200000]]", "segments is 200000, where at most 100000 belong"),
    ],
)
def test_segments_that_are_none(segments, said):
    line = f'{{"at":1,"event":"WorkArrived","session":1,"work":1,"segments":{segments}}}'
    line = line.replace('"work"', '"ends_iteration":true,"work"')
    assert said in refused(line)


def test_a_recording_has_a_bound(monkeypatch):
    monkeypatch.setattr(recording_module, "_MOST_LINES", 2)
    line = write_event(CellStarted(1), 1.0)
    assert "line 3: a recording has at most 2" in refused(line, line)
