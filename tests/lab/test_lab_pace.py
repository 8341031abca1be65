"""What is told at once and what later, and that a page is never told too much."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st
from lab_reports import MIB, REPORTS, report, session, state

from jgpu.labserver.pace import GROWING, Pace, urgent
from jgpu.labserver.patches import patch


def shown(**fields):
    return state(report(session(1, **fields)))


def test_what_merely_grows_waits():
    before = shown(state="running", device_seconds=1.0, resident_bytes=MIB, cell="1")
    after = shown(state="running", device_seconds=2.0, resident_bytes=5 * MIB, cell="1")
    assert urgent(before, after) == before


def test_a_state_does_not_wait_and_what_grew_waits_all_the_same():
    before = shown(state="running", device_seconds=1.0)
    after = shown(state="waiting", device_seconds=2.0, waits_on="turn", ahead=1)
    assert patch(before, urgent(before, after)) == {
        "kernels": {"kernel-1": {"state": "waiting", "waits_on": "turn", "ahead": 1}}
    }


def test_a_cells_time_is_told_with_its_end():
    before = shown(state="running", cell="7", cells={"7": 1.0}, device_seconds=1.0)
    after = shown(state="running", cell="", cells={"7": 2.0}, device_seconds=2.0)
    assert urgent(before, after) == after


def test_a_cell_that_is_over_before_anybody_saw_it_is_told_at_once():
    before = shown(state="idle", cells={"7": 1.0}, device_seconds=1.0)
    after = shown(state="idle", cells={"7": 1.0, "8": 0.1}, device_seconds=1.1)
    assert urgent(before, after) == after


def test_figures_of_whoever_comes_to_rest_are_the_last():
    before = shown(state="running", cells={"7": 1.0}, device_seconds=1.0)
    after = shown(state="idle", cells={"7": 2.0}, device_seconds=2.0)
    assert urgent(before, after) == after


def test_a_kernel_that_came_is_told_whole_and_one_that_went_is_gone():
    one, two = session(1, device_seconds=1.0), session(2, device_seconds=2.0)
    both = state(report(one, two))
    assert urgent(state(report(one)), both) == both
    assert urgent(both, state(report(two))) == state(report(two))


def without_what_grows(value):
    if not isinstance(value, dict):
        return value
    return {key: without_what_grows(each) for key, each in value.items() if key not in GROWING}


@given(REPORTS, REPORTS)
def test_only_what_grows_is_ever_held_back(before, after):
    one, other = state(before), state(after)
    assert without_what_grows(urgent(one, other)) == without_what_grows(other)


def test_what_grows_is_told_every_two_seconds():
    pace, known = Pace(), {"kernels": {"k": {"used": 0, "state": "running"}}}
    told = []
    for tick in range(100):
        now = tick * 0.1
        newest = {"kernels": {"k": {"used": tick + 1, "state": "running"}}}
        if now >= pace.next() and (made := pace.choose(known, newest, now)) != known:
            told.append(round(now, 1))
            known = made
            pace.told(50, now)
    assert told == [0.0, 2.0, 4.0, 6.0, 8.0]


@given(st.lists(st.tuples(st.floats(0, 3), st.integers(1, 5000)), min_size=1, max_size=60))
def test_a_page_is_never_told_too_much(wants):
    """Of each message: how long after the last it is wanted, and how large it is."""
    pace, now, sent = Pace(), 0.0, []
    for after, nbytes in wants:
        now = max(now + after, pace.next())
        pace.told(nbytes, now)
        sent.append((now, nbytes))
    for first in range(len(sent)):
        window = sent[first:]
        for last in range(len(window)):
            span = window[last][0] - window[0][0]
            assert sum(each for _, each in window[:last]) <= 4000 + 8000 * span + 1e-3
    assert all(b - a >= 0.1999 for (a, _), (b, _) in pairwise(sent))


def test_a_single_change_is_told_at_once():
    pace = Pace()
    pace.told(300, 10.0)
    assert pace.next() == 10.2
