"""What a page is told of a report: the owner's part, rounded, and nothing that is null."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lab_reports import DEVICE, GIB, MIB, REPORTS, USER, WAITING, report, session, state
from merging import merged

from jgpu.labserver.patches import patch
from jgpu.labserver.rounding import round_bytes, round_moment, round_seconds
from jgpu.labserver.state import Moments, kernel_sessions, state_of
from jgpu.wire.reports.report import SOMEBODY, SessionReport

# -- rounding ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("nbytes", "shown"),
    [
        (0, 0),
        (-5, 0),
        (1, MIB),
        (MIB + 1, MIB),
        (MIB * 3 // 2, 2 * MIB),
        (GIB - 1, GIB),
        (GIB, 1_070_000_000),
        (12_345_678_901, 12_300_000_000),
    ],
)
def test_bytes_are_shown_to_a_mib_or_three_digits(nbytes, shown):
    assert round_bytes(nbytes) == shown


@given(st.integers(0, 1 << 50))
def test_rounded_bytes_are_near_and_stay_as_they_are(nbytes):
    shown = round_bytes(nbytes)
    assert round_bytes(shown) in (shown, round_bytes(GIB))
    assert abs(shown - nbytes) <= max(MIB, nbytes // 100)
    assert (shown == 0) == (nbytes == 0)


@given(st.floats())
def test_rounded_seconds_are_near_and_can_be_sent(seconds):
    shown = round_seconds(seconds)
    assert json.loads(json.dumps(shown, allow_nan=False)) == shown >= 0.0
    if 0.0 < seconds < 1e300:
        assert shown == pytest.approx(seconds, rel=0.006)
    json.dumps(round_moment(seconds), allow_nan=False)


# -- the state -----------------------------------------------------------------------------------


def test_a_kernel_that_waits():
    assert state(report(WAITING))["kernels"] == {
        "kernel-1": {
            "session": 1,
            "path": "a/lesson.ipynb",
            "state": "waiting",
            "since": 100.0,
            "waits_on": "turn",
            "waits_since": 95.0,
            "ahead": 2,
            "behind": ["", "user1"],
            "lane": 0,
            "cell": "12",
            "held": 9 * MIB,
            "model": 4 * MIB,
            "kept": 5 * MIB,
            "spilled": 3 * MIB,
            "device_seconds": 12.3,
            "iterations": 40,
            "iteration_seconds": 0.123,
            "cell_seconds": 3.27,
            "cells": {"11": 0.25, "12": 3.27},
        }
    }


@pytest.mark.parametrize(("cell", "seconds"), [("12", 3.27), ("", 3.27), ("11", 0.25), ("13", 0.0)])
def test_the_time_of_the_cell_that_runs_or_ran_last(cell, seconds):
    row = SessionReport(id=1, user="user1", kernel_id="k", cell=cell, cells=WAITING.cells)
    assert state(report(row))["kernels"]["k"]["cell_seconds"] == seconds


def test_what_a_kernel_holds_is_rounded_once():
    """Two halves of a MiB are one, though each by itself is shown as one."""
    halves = {"resident_bytes": MIB // 2, "ephemeral_bytes": MIB // 2}
    little = SessionReport(id=1, user="user1", kernel_id="k", **halves)
    (row,) = state(report(little))["kernels"].values()
    assert (row["model"], row["kept"], row["held"]) == (MIB, MIB, MIB)


def test_the_share_is_the_owners():
    other = USER.__class__(name="user2")
    assert state(report(users=(other, USER)))["share"] == {
        "user": "user1",
        "weight": 2.0,
        "sessions": 2,
        "most_sessions": 0,
        "used": 12 * MIB,
        "memory": 4 * GIB,
        "resident": 5 * MIB,
        "most_resident": 0,
        "budget": 3600.0,
        "period": 86400.0,
        "spent": 1230.0,
        "state": "within",
        "text": "",
    }


def test_the_device_with_others_nameless():
    made = state(report(WAITING, session(2, SOMEBODY, state="running", lane=0), device=DEVICE))
    assert made["device"] == {
        "name": "GPU (shared)",
        "kind": "cuda",
        "state": "ready",
        "note": "",
        "policy": "fair",
        "capacity": 80 * GIB,
        "used": 3_220_000_000,
        "lanes": {
            "0": {"session": 2, "since": 100.0, "members": 2},
            "1": {"since": 100.0, "members": 1},
        },
        "sessions": {
            "1": {
                "user": "user1",
                "own": True,
                "lane": 0,
                "state": "waiting",
                "device_seconds": 12.3,
            },
            "2": {"user": "", "own": False, "lane": 0, "state": "running", "device_seconds": 0.0},
        },
    }


def test_whose_a_session_is():
    theirs = session(2, "user2", kernel_id="kernel-2", pid=8)  # as an administrator would see it
    assert list(kernel_sessions(report(WAITING, theirs))) == ["kernel-1"]
    assert list(kernel_sessions(report(WAITING, theirs, private=True))) == ["kernel-1", "kernel-2"]
    older = report(WAITING, session(3, "user2", kernel_id=""), asker="")
    assert list(kernel_sessions(older)) == ["kernel-1"]


def test_of_a_kernel_with_two_sessions_the_newer_is_told():
    old, new = session(9, kernel_id="k"), session(10, kernel_id="k")
    assert state(report(new, old))["kernels"]["k"]["session"] == 10


def test_of_an_older_broker_the_only_user_is_the_owner():
    other = USER.__class__(name="user2")
    assert state(report(users=(USER,), asker=""))["share"]["user"] == "user1"
    assert "share" not in state(report(users=(USER, other), asker=""))


def test_a_claimed_name_counts_at_ones_own_broker_alone():
    users = (USER, USER.__class__(name="user2"))
    assert state(report(users=users, private=True), claimed="user2")["share"]["user"] == "user2"
    assert state(report(users=users), claimed="user2")["share"]["user"] == "user1"


def test_a_drain_is_told_in_its_own_words():
    told = state(report(drain="draining", drain_text="Nothing would be lost."))
    assert (told["drain"], told["drain_text"]) == ("draining", "Nothing would be lost.")


def test_a_path_without_end_is_cut_and_markup_is_text():
    row = session(1, label="<script>" + "x" * 10_000)
    shown = state(report(row))["kernels"]["kernel-1"]["path"]
    assert shown == "<script>" + "x" * 1016


def test_since_when_a_session_is_in_its_state():
    moments = Moments()
    for now, what in ((10.0, "running"), (20.0, "running"), (30.0, "waiting"), (40.0, "waiting")):
        made = report(session(1, state=what))
        moments.take(made, now)
    assert state_of(made, moments)["kernels"]["kernel-1"]["since"] == 30.0


def has_null(value):
    if isinstance(value, dict):
        return any(has_null(each) for each in value.values())
    return value is None


@given(REPORTS)
def test_nothing_is_null_and_everything_is_json(made):
    told = state(made)
    assert not has_null(told)
    assert json.loads(json.dumps(told, allow_nan=False)) == told


@given(REPORTS)
def test_no_others_notebook_is_told(made):
    own = {row.id for row in made.sessions if row.user == "user1" or made.broker.private}
    if made.broker.asker:
        assert {row["session"] for row in state(made)["kernels"].values()} <= own
        assert SOMEBODY not in json.dumps(state(made))


# -- patches -------------------------------------------------------------------------------------

_VALUES = st.recursive(
    st.booleans() | st.integers(-2, 2) | st.floats(allow_nan=False) | st.text("ab", max_size=2),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from("abc"), inner),
    max_leaves=8,
)
OBJECTS = st.dictionaries(st.sampled_from("abc"), _VALUES)


@given(OBJECTS, OBJECTS)
def test_a_patch_makes_one_state_of_another(before, after):
    change = patch(before, after)
    assert json.dumps(merged(change, before), sort_keys=True) == json.dumps(after, sort_keys=True)
    assert patch(after, after) == {}


@given(REPORTS, REPORTS)
def test_a_patch_makes_one_report_of_another(before, after):
    one, other = state(before), state(after)
    assert merged(patch(one, other), one) == other


@pytest.mark.parametrize(
    ("target", "change", "made"),
    [
        # RFC 7396, appendix A
        ({"a": "b"}, {"a": "c"}, {"a": "c"}),
        ({"a": "b"}, {"b": "c"}, {"a": "b", "b": "c"}),
        ({"a": "b"}, {"a": None}, {}),
        ({"a": "b", "b": "c"}, {"a": None}, {"b": "c"}),
        ({"a": ["b"]}, {"a": "c"}, {"a": "c"}),
        ({"a": "c"}, {"a": ["b"]}, {"a": ["b"]}),
        ({"a": {"b": "c"}}, {"a": {"b": "d", "c": None}}, {"a": {"b": "d"}}),
        ({"a": [{"b": "c"}]}, {"a": [1]}, {"a": [1]}),
        (["a", "b"], ["c", "d"], ["c", "d"]),
        ({"a": "b"}, ["c"], ["c"]),
        ({"a": "foo"}, None, None),
        ({"a": "foo"}, "bar", "bar"),
        ({"e": None}, {"a": 1}, {"e": None, "a": 1}),
        ([1, 2], {"a": "b", "c": None}, {"a": "b"}),
        ({}, {"a": {"bb": {"ccc": None}}}, {"a": {"bb": {}}}),
    ],
)
def test_patches_are_applied_as_the_standard_says(target, change, made):
    assert merged(change, target) == made
