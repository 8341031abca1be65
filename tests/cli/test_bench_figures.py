"""What the benchmarks of sharing make of what they find, and what they say of it."""

import argparse
import json
import os

import pytest

from jgpu.bench.live.fairness import jain, off_by
from jgpu.bench.live.switch import native_switches
from jgpu.bench.live.throughput import rate_of
from jgpu.bench.rig import goals
from jgpu.bench.rig.controlgroup import ControlGroup
from jgpu.bench.rig.goals import at_least, at_most, percentile, plain
from jgpu.bench.rig.lanes import imbalance_s, pieces_of, switches_of
from jgpu.errors import ConfigError

SECOND = 1_000_000_000


def row(session, ready, began, ended, lane=0):
    return (lane, session, ready * SECOND, began * SECOND, ended * SECOND)


@pytest.mark.parametrize(
    ("figure", "met"),
    [
        (at_most("", [1.0, 3.0, 2.0], 2.0), True),
        (at_most("", [1.0, 3.0, 2.0], 1.9), False),
        (at_least("", [1.0, 3.0, 2.0], 2.0), True),
        (at_least("", [1.0, 3.0, 2.0], 2.1), False),
        (plain("", [1.0, 3.0, 2.0]), None),
    ],
)
def test_a_goal_is_held_against_the_median(figure, met):
    assert (figure.value, figure.low, figure.high) == (2.0, 1.0, 3.0)
    assert figure.met is met


def test_a_percentile_is_a_value_that_was_found():
    values = list(range(1, 101))
    assert [percentile(values, percent) for percent in (0, 1, 50, 99, 100)] == [1, 1, 50, 99, 100]
    assert percentile([7.0], 99) == 7.0


def test_what_is_printed_is_written_with_goals_and_all(tmp_path, capsys):
    options = argparse.Namespace(what="fairness", seconds=1.0, json=tmp_path / "found.json")
    goals.show("Shares", [at_most("off", [3.0], 2.0, "%")], options, notes=["so"], more={"a": 1})
    found = json.loads(options.json.read_text())
    assert found["figures"][0]["met"] is False
    assert (found["bench"], found["options"], found["a"]) == (
        "fairness",
        {"what": "fairness", "seconds": 1.0},
        1,
    )
    assert "MISSED" in capsys.readouterr().out


# -- shares ------------------------------------------------------------------------------------


def test_shares_are_held_against_weights():
    assert off_by({"a": 0.5, "b": 0.5}, {"a": 1, "b": 1}, {}) == 0
    assert off_by({"a": 0.6, "b": 0.4}, {"a": 1, "b": 1}, {}) == pytest.approx(0.2)
    assert off_by({"a": 0.6, "b": 0.3}, {"a": 2, "b": 1}, {}) == pytest.approx(0)


def test_who_asks_for_less_than_his_share_is_due_what_he_asks():
    assert off_by({"a": 0.8, "b": 0.2}, {"a": 1, "b": 1}, {"b": 0.2}) == pytest.approx(0)
    assert off_by({"a": 0.5, "b": 0.5}, {"a": 1, "b": 1}, {"b": 0.9}) == pytest.approx(0)


def test_jains_index_is_one_for_equal_shares_and_one_in_n_for_one_alone():
    assert jain([2.0, 2.0, 2.0]) == pytest.approx(1)
    assert jain([1.0, 0.0, 0.0, 0.0]) == pytest.approx(0.25)


# -- lanes -------------------------------------------------------------------------------------


def test_a_switch_is_from_an_end_to_the_next_sessions_begin_in_the_same_lane():
    traced = [row(1, 0, 1, 2), row(2, 0, 5, 6, lane=1), row(1, 2, 2, 4), row(2, 3, 5, 7)]
    (found,) = switches_of(pieces_of(traced))
    assert (found.at, found.seconds, found.waited_for) == (4.0, 1.0, True)
    (late,) = switches_of(pieces_of([row(1, 0, 1, 2), row(2, 3, 4, 5)]))
    assert not late.waited_for


def test_pieces_are_those_that_began_within_the_stretch_in_order():
    traced = [row(1, 0, 4, 5), row(2, 0, 1, 2), row(3, 0, 9, 10)]
    assert [piece.session for piece in pieces_of(traced, 1, 9)] == [2, 1]


def test_imbalance_is_the_furthest_from_equal():
    pieces = pieces_of([row(1, 0, 0, 2), row(2, 0, 2, 3), row(2, 0, 3, 6), row(1, 0, 6, 7)])
    assert imbalance_s(pieces, {1: "others", 2: "late"}, "late") == 2.0


def test_native_processes_change_in_mid_step():
    one, other = [(0.0, 1.0), (1.0, 4.0), (4.0, 5.0)], [(1.5, 3.0), (3.0, 6.0), (6.0, 7.0)]
    found = [(each.at, each.seconds) for each in native_switches(one, other)]
    assert found == [(1.0, 0.5), (3.0, 1.0), (5.0, 1.0)]


def test_a_rate_counts_from_the_first_begin_to_the_last_end():
    answers = [
        {"begin": 1.0, "end": 4.0, "iterations": 6},
        {"begin": 2.0, "end": 5.0, "iterations": 2},
    ]
    assert rate_of(answers) == 2.0


# -- control groups ----------------------------------------------------------------------------


def tree(tmp_path, line, **files):
    """A tree of control groups whose new groups have these files."""
    own = tmp_path / "cgroup"
    own.write_text(f"{line}\n")
    root = tmp_path / "root"
    return {"root": root, "own": own}, root


@pytest.mark.parametrize(
    ("line", "place", "limit", "stat"),
    [
        ("4:memory:/mine", "memory/mine", "memory.limit_in_bytes", "rss 7\ncache 9\n"),
        ("0::/mine", "mine", "memory.max", "anon 7\nfile 9\n"),
    ],
)
def test_a_group_lies_below_ones_own_in_either_version(
    tmp_path, monkeypatch, line, place, limit, stat
):
    where, root = tree(tmp_path, line)
    (root / place).mkdir(parents=True)
    made = root / place / "bench"
    mkdir = type(made).mkdir

    def with_files(path, *args, **kwargs):
        mkdir(path, *args, **kwargs)
        for name, text in ((limit, "max"), ("memory.stat", stat), ("cgroup.procs", "")):
            (path / name).write_text(text)

    monkeypatch.setattr(type(made), "mkdir", with_files)
    group = ControlGroup("bench", **where)
    group.join()
    group.limit(5)
    assert group.own_bytes() == 7
    assert (made / limit).read_text() == "5"
    assert (made / "cgroup.procs").read_text() == "0"


def test_a_host_without_control_groups_is_told_why(tmp_path):
    with pytest.raises(ConfigError, match="There are no control groups here"):
        ControlGroup("bench", own=tmp_path / "nothing")
    where, root = tree(tmp_path, "0::/")
    with pytest.raises(ConfigError, match="No control group can be made"):
        ControlGroup("bench", **where)
    root.mkdir()
    with pytest.raises(ConfigError, match="have no limit of memory"):
        ControlGroup("bench", **where)
    assert os.listdir(root) == []
