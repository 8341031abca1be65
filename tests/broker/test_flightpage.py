"""The flight page: what one process writes another reads, also after the writer's death."""

import signal
import subprocess
import sys
import threading
from time import monotonic_ns

import processes
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jgpu.broker.flightpage import NO_OP, FlightPage, Kind, Record, State

HASH = bytes(range(16))
NAMES = b"aten::add.Tensor\naten::div.Tensor_mode\naten::sum"

KILLED = """
import os, signal, sys
from jgpu.broker.flightpage import FlightPage, Kind
page = FlightPage.adopt(int(sys.argv[1]))
record = page.open("lane 7")
record.begin(3, 41, Kind.PROGRAM, bytes(range(16)), b"aten::add.Tensor\\naten::div.Tensor_mode", 2)
mark = record.mark()
mark[0] = 0
mark[0] = 1
page.pump_works()
os.kill(os.getpid(), signal.SIGKILL)
"""

HASTY = """
import sys
from jgpu.broker.flightpage import FlightPage, Kind
page = FlightPage.adopt(int(sys.argv[1]))
record = page.open("lane 0")
lists = [b"\\n".join([b"op%d" % k] * 100) for k in range(10)]
print("begun", flush=True)
for n in range(1 << 40):
    k = n % 10
    record.begin(k, k, Kind.PROGRAM, bytes([k]) * 16, lists[k], 100)
    mark = record.mark()
    for _ in range(200):
        mark[0] = k
"""


def child(page, script):
    return processes.start(
        [sys.executable, "-c", script, str(page.descriptor)],
        pass_fds=(page.descriptor,),
        stdout=subprocess.PIPE,
        text=True,
    )


def only(page):
    (entry,) = page.entries()
    return entry


def test_what_a_killed_process_was_at_can_be_read_after_its_end():
    page = FlightPage.create()
    before = monotonic_ns()
    process = child(page, KILLED)
    assert process.wait(60) == -signal.SIGKILL
    process.stdout.close()
    entry = only(page)
    assert (entry.label, entry.state, entry.session, entry.work) == ("lane 7", State.WORKS, 3, 41)
    assert (entry.kind, entry.program, entry.ops) == (Kind.PROGRAM, HASH, 2)
    assert (entry.op, entry.name) == (1, "aten::div.Tensor_mode")
    assert before < entry.since_ns < monotonic_ns()
    assert entry.native_id == process.pid
    sign = page.pump_sign()
    assert not sign.waits
    assert entry.since_ns <= sign.since_ns < monotonic_ns()
    page.close()


def test_a_record_that_changes_all_the_time_is_read_whole():
    page = FlightPage.create()
    process = child(page, HASTY)
    try:
        assert process.line() == "begun\n"
        seen = set()
        while len(seen) < 500:
            entry = only(page)
            if entry.state is not State.WORKS:
                continue  # the writer was interrupted in the midst of a change
            assert entry.program == bytes([entry.session]) * 16
            assert entry.work == entry.session
            assert entry.op in (NO_OP, entry.session)
            assert entry.name in ("", f"op{entry.session}")
            seen.add(entry.since_ns)
    finally:
        process.kill()
        process.wait(60)
        process.stdout.close()
        page.close()


def test_a_record_says_what_begins_what_it_is_at_and_that_it_rests():
    page = FlightPage.unshared()
    record = page.open("lane 0")
    assert (only(page).state, only(page).session, only(page).label) == (State.RESTS, 0, "lane 0")
    record.begin(5, 9, Kind.PROGRAM, HASH, NAMES, 3)
    assert (only(page).op, only(page).name) == (NO_OP, "")
    mark = record.mark()
    for op, name in enumerate(NAMES.decode().split("\n")):
        mark[0] = op
        assert (only(page).op, only(page).name) == (op, name)
    assert only(page).ident == threading.get_ident()
    record.rest()
    assert (only(page).state, only(page).name) == (State.RESTS, "aten::sum")
    record.begin(6, 1, Kind.UPLOAD)
    entry = only(page)
    assert (entry.session, entry.kind, entry.op, entry.name) == (6, Kind.UPLOAD, NO_OP, "")
    assert (entry.program, entry.ops) == (bytes(16), 0)


def test_a_mark_that_was_released_stops_its_run_and_no_other():
    record = FlightPage.unshared().open("lane 0")
    first, second = record.mark(), record.mark()
    first.release()
    with pytest.raises(ValueError, match="released"):
        first[0] = 1
    second[0] = 2
    record.mark()[0] = 3


def test_closed_records_are_given_to_others_without_a_trace():
    page = FlightPage.unshared()
    first = page.open("lane 0")
    page.open("lane 1")
    first.begin(5, 9, Kind.PROGRAM, HASH, NAMES, 3)
    first.fly()
    first.close()
    assert [entry.label for entry in page.entries()] == ["lane 1"]
    assert page.in_flight() == []
    page.open("lane 2")
    assert [(e.label, e.session) for e in page.entries()] == [("lane 2", 0), ("lane 1", 0)]
    assert page.in_flight() == []


def test_where_all_records_are_taken_the_next_is_on_no_page():
    page = FlightPage.unshared()
    count = 0
    while len(page.entries()) == count:
        count += 1
        page.open(f"lane {count}")
    assert count > 68  # 64 lanes and the helper threads
    record = page.open("one more")
    record.begin(5, 9, Kind.PROGRAM, HASH, NAMES, 3)
    record.mark()[0] = 1
    assert all(entry.session == 0 for entry in page.entries())


def test_a_very_long_program_leaves_its_last_ops_without_a_name():
    page = FlightPage.unshared()
    record = page.open("lane 0")
    names = b"\n".join(b"aten::op%d" % k for k in range(5000))
    record.begin(5, 9, Kind.PROGRAM, HASH, names, 5000)
    mark, told = record.mark(), []
    for op in range(5000):
        mark[0] = op
        told.append(only(page).name)
    known = told.index("")
    assert known > 500
    assert told[:known] == [f"aten::op{k}" for k in range(known)]
    assert set(told[known:]) == {""}


def test_programs_in_flight_are_listed_until_they_land():
    page = FlightPage.unshared()
    record = page.open("lane 0")
    assert record.fly() == -1  # nothing was begun
    record.landed(-1)
    places = []
    for work in range(3):
        record.begin(5, work, Kind.PROGRAM, HASH, NAMES, 3)
        places.append(record.fly())
        record.rest()
    record.landed(places[0])
    assert [(e.label, e.work, e.program) for e in page.in_flight()] == [
        ("lane 0", 1, HASH),
        ("lane 0", 2, HASH),
    ]


MOVES = st.lists(
    st.one_of(
        st.tuples(st.just("begin"), st.integers(0, 2), st.integers(0, 1 << 62)),
        st.tuples(st.just("mark"), st.integers(0, 2), st.integers(0, 1 << 40)),
        st.tuples(st.just("rest"), st.integers(0, 2), st.none()),
        st.tuples(st.just("close"), st.integers(0, 2), st.none()),
    ),
    max_size=40,
)


@given(MOVES)
@settings(max_examples=100, deadline=None)
def test_the_page_says_of_each_record_what_was_written_last(moves):
    page = FlightPage.unshared()
    records: dict[int, Record] = {}
    told: dict[int, tuple] = {}
    for move, lane, value in moves:
        if lane not in records:
            records[lane], told[lane] = page.open(str(lane)), (State.RESTS, 0, 0)
        if move == "begin":
            records[lane].begin(value, 1, Kind.PROGRAM, HASH)
            told[lane] = (State.WORKS, value, NO_OP)
        elif move == "mark":
            records[lane].mark()[0] = value
            told[lane] = (*told[lane][:2], value)
        elif move == "rest":
            records[lane].rest()
            told[lane] = (State.RESTS, *told[lane][1:])
        else:
            records.pop(lane).close()
            del told[lane]
        assert {int(e.label): (e.state, e.session, e.op) for e in page.entries()} == told
