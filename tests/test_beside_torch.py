"""What the suites beside other releases of torch leave behind; not the suites themselves."""

import sys

import versions

ONCE = """
from pathlib import Path

import pytest


@pytest.mark.parametrize("word", ["a b"])
def test_a_new_folder(word):
    Path("seen").mkdir()


def test_always():
    pass
"""


def test_a_test_that_failed_is_run_again_alone_and_both_are_kept(tmp_path, monkeypatch):
    (tmp_path / "pytest.ini").touch()
    (tmp_path / "test_x.py").write_text(ONCE)
    (tmp_path / "seen").mkdir()
    monkeypatch.setattr(versions, "ROOT", tmp_path)
    monkeypatch.setitem(versions.SUITES, "x", (["test_x.py"], ""))
    row = versions.run_suite(sys.executable, "x", ["-p", "no:cacheprovider"])
    failed = "FAILED test_x.py::test_a_new_folder[a b]"
    assert (row["status"], row["failed"]) == (1, [failed])
    assert row["outcome"].startswith("1 failed, 1 passed in ")
    assert row["alone"]["failed"] == [failed]
    assert row["alone"]["outcome"].startswith("1 failed in ")
    (tmp_path / "seen").rmdir()
    assert "alone" not in versions.run_suite(sys.executable, "x", ["-p", "no:cacheprovider"])


def test_suites_of_an_earlier_run_beside_the_same_torch_keep_their_rows_and_commits():
    rows = {"parity": {"outcome": "2 passed"}, "device": {"outcome": "1 passed", "commit": "a"}}
    written = {"torch": "2.11.0+cu130", "commit": "b", "suites": rows}
    assert versions.rows_of_today(written, "2.11.0+cu130") == {
        "parity": {"outcome": "2 passed", "commit": "b"},
        "device": {"outcome": "1 passed", "commit": "a"},
    }
    assert (
        versions.rows_of_today(written, "2.11.1+cu130")
        == versions.rows_of_today({}, "2.11.0+cu130")
        == {}
    )
