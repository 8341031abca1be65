"""Cases as processes: what ends one ends no other, and all of them end in time."""

import sys
import time

import pytest

from jgpu.gpucheck.catalogue import CASES, GpuCase
from jgpu.gpucheck.outcome import CaseEnd, outcome_of
from jgpu.gpucheck.running import Runner

THROUGH = "print('{\"through\": true}')"
HOLDS = 'print(\'{"check": "it", "holds": true, "text": ""}\')'
FAILS = 'print(\'{"check": "it", "holds": false, "text": "two"}\')'
PASSES = f"{HOLDS}; {THROUGH}"
FOREVER = "import time; time.sleep(1000)"


def case(name, limit_s=60.0, *, alone=False):
    return GpuCase(name, "none", name, limit_s, alone=alone)


@pytest.fixture
def run(monkeypatch):
    """Outcomes by name, of cases whose programs are given."""

    def outcomes(programs, cases=None, *, budget_s=60.0, **how):
        runner = Runner(
            lambda each: (sys.executable, "-S", "-c", programs[each.name]),
            {"PATH": "/usr/bin:/bin"},
            budget_s=budget_s,
            **how,
        )
        chosen = cases or [case(name) for name in programs]
        return {each.case: each for each in runner.run(chosen)}

    return outcomes


def test_a_case_that_crashes_ends_no_other(run):
    found = run(
        {
            "crash": f"import os, signal; {HOLDS}; os.kill(os.getpid(), signal.SIGSEGV)",
            "fail": f"{FAILS}; {THROUGH}; raise SystemExit(1)",
            "torn": f"{HOLDS}; raise ValueError('half-way')",
            "pass": PASSES,
            "skip": f'print(\'{{"skip": "one GPU"}}\'); {THROUGH}',
            "silent": THROUGH,
        }
    )
    assert {name: each.end.value for name, each in found.items()} == {
        "crash": "failed",
        "fail": "failed",
        "torn": "failed",
        "pass": "passed",
        "skip": "skipped",
        "silent": "failed",
    }
    assert found["crash"].text == "process: It was ended by SIGSEGV."
    assert found["fail"].text == "it: two"
    assert found["torn"].text == (
        "process: It ended with status 1 before it was through (ValueError: half-way)."
    )
    assert found["skip"].text == "one GPU"


def test_a_case_that_hangs_is_ended_with_all_that_it_started(run, tmp_path):
    mark = tmp_path / "pid"
    starts = (
        "import subprocess, sys, time\n"
        f"child = subprocess.Popen([sys.executable, '-S', '-c', {FOREVER!r}],\n"
        "    start_new_session=True)\n"
        f"open({str(mark)!r}, 'w').write(str(child.pid))\n"
    )
    found = run(
        {"hang": f"{starts}time.sleep(1000)", "leave": starts + PASSES, "pass": PASSES},
        [case("hang", 1.0), case("pass")],
    )
    assert found["hang"].text.startswith("process: It was not over after ")
    assert found["hang"].end is CaseEnd.FAILED
    assert found["pass"].end is CaseEnd.PASSED
    assert not is_alive(int(mark.read_text()))
    assert run({"leave": starts + PASSES})["leave"].end is CaseEnd.PASSED
    assert not is_alive(int(mark.read_text()))


def is_alive(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_what_is_left_when_the_time_is_over_is_told_as_not_run(run):
    began = time.monotonic()
    programs = dict.fromkeys(("one", "two", "last"), FOREVER)
    found = run(
        programs, [case("one"), case("two"), case("last", alone=True)], budget_s=1.0, at_once=1
    )
    assert time.monotonic() - began < 30
    assert {name: each.end.value for name, each in found.items()} == dict.fromkeys(
        programs, "not run"
    )
    assert found["one"].text.startswith("out of time, after ")
    assert found["two"].text == found["last"].text == "out of time"


def test_at_most_so_many_run_at_once_and_a_timed_one_alone(run, tmp_path):
    log = tmp_path / "log"

    def program(name, beside=""):
        """Writes when it begins and ends, in between waits until another one has begun."""
        return (
            f"import time\nlog = open({str(log)!r}, 'ab', buffering=0)\nlog.write(b'+{name} ')\n"
            f"while b'+{beside}' not in open({str(log)!r}, 'rb').read(): time.sleep(0.01)\n"
            f"log.write(b'-{name} ')\n{HOLDS}\n{THROUGH}"
        )

    alone = ("timed", "too")
    names = (*alone, "a", "b", "c", "d")
    beside = {"a": "b", "b": "a"}
    found = run(
        {name: program(name, beside.get(name, "")) for name in names},
        [case(name, alone=name in alone) for name in names],
        at_once=2,
    )
    assert all(each.end is CaseEnd.PASSED for each in found.values()), found
    running = most = 0
    words = log.read_text().split()
    for word in words:
        running += 1 if word[0] == "+" else -1
        most = max(most, running)
    assert most == 2
    assert words[-4:] == ["+timed", "-timed", "+too", "-too"]


def test_a_goal_that_was_missed_is_told_and_is_no_failure():
    lines = [
        '{"figure": "rate", "value": 3.0, "unit": "ops/s", "goal": "at least 9", "met": false}',
        '{"note": "slow"}',
        "a library says something",
        '{"through": true}',
    ]
    found = outcome_of("pump", 0, lines, "", 2.0)
    assert found.end is CaseEnd.PASSED
    assert (found.missed, found.notes) == (["rate"], ["slow"])
    assert found.figures["rate"]["value"] == 3.0


def test_the_list_says_what_can_be_run():
    names = [each.name for each in CASES]
    assert len(names) == len(set(names))
    for each in CASES:
        module = __import__(f"jgpu.gpucheck.cases.{each.module}", fromlist=["__all__"])
        assert each.function in module.__all__
        assert getattr(module, each.function).__doc__
    # The first decides, so it is among the first three minutes'; what is timed comes last.
    assert CASES[0].soon
    assert sorted(CASES, key=lambda each: each.alone) == list(CASES)
