"""The files that long tests leave in `bench/results`."""

import json
import re

import pytest
from results import read_result, write_result


def test_a_result_says_what_was_measured_when_of_what_and_where(tmp_path):
    path = write_result("hostile-values", {"ops": 3, "deaths": []}, device="null", folder=tmp_path)
    written = json.loads(path.read_text())
    assert re.fullmatch(r"\d{4}-\d\d-\d\d-null-hostile-values\.json", path.name)
    assert path.name.startswith(written["date"])
    assert (written["measured"], written["device"]) == ("hostile-values", "null")
    assert re.fullmatch(r"[0-9a-f]{40}|unknown", written["commit"])
    assert isinstance(written["changed"], bool)
    assert written["host"].keys() == {"machine", "cores", "python", "load"}
    assert written["torch"]
    assert (written["ops"], written["deaths"]) == (3, [])


def test_what_another_environment_measured_is_of_its_torch(tmp_path):
    path = write_result("x", {}, folder=tmp_path, torch="2.15.0+cu132")
    assert json.loads(path.read_text())["torch"] == "2.15.0+cu132"


def test_no_figure_replaces_what_a_file_says_of_itself(tmp_path):
    with pytest.raises(ValueError, match="commit"):
        write_result("x", {"commit": "another"}, folder=tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_second_run_on_one_day_replaces_the_first(tmp_path):
    for faults in (1, 0):
        path = write_result("x", {"faults": faults}, folder=tmp_path)
    assert json.loads(path.read_text())["faults"] == 0
    assert list(tmp_path.iterdir()) == [path]


def test_what_was_written_today_is_read_again(tmp_path):
    assert read_result("x", folder=tmp_path) == {}
    write_result("x", {"faults": 3}, folder=tmp_path)
    assert read_result("x", folder=tmp_path)["faults"] == 3
