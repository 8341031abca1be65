"""`make test-gpu` and `jgpu doctor --gpu`: without a GPU, and on the host's version of one."""

import json
import os
import sys

import processes
import pytest

from jgpu.cli import _trying, doctor
from jgpu.errors import ConfigError
from jgpu.gpucheck import carried, command, sight
from jgpu.gpucheck.catalogue import CASES
from jgpu.gpucheck.command import Found
from jgpu.gpucheck.outcome import CaseEnd, GpuOutcome


@pytest.fixture
def nothing(monkeypatch):
    """A host without a GPU, also where there is one."""
    monkeypatch.setattr(sight, "gpu_seems_present", lambda environ: False)
    monkeypatch.setattr(sight, "gpu_is_plugged_in", lambda: False)


def lines_of(text):
    return [json.loads(line) for line in text.splitlines()]


def test_without_a_gpu_every_case_is_skipped_and_that_is_no_failure(nothing, capsys):
    assert command.main([]) == 0
    about, *cases, last = lines_of(capsys.readouterr().out)
    assert about["measured"] == "gpu"
    assert [each["case"] for each in cases] == [case.name for case in CASES]
    assert {each["end"] for each in cases} == {"skipped"}
    assert last == {"sentence": sight.NOTHING, "status": 0}


def test_the_doctor_says_in_one_line_that_there_is_none(nothing):
    (finding,) = doctor.try_gpu()
    assert (finding.state, finding.text) == ("note", sight.NOTHING)


def test_a_gpu_that_nobody_drives_is_a_fault_and_a_hidden_one_is_not(monkeypatch):
    monkeypatch.setattr(sight, "gpu_is_plugged_in", lambda: True)
    monkeypatch.setattr(sight, "gpu_seems_present", lambda environ: False)
    text, is_fault = sight.why_not({})
    assert is_fault
    assert "no NVIDIA driver answers: install it" in text
    seen = lambda environ: "CUDA_VISIBLE_DEVICES" not in environ  # noqa: E731
    monkeypatch.setattr(sight, "gpu_seems_present", seen)
    text, is_fault = sight.why_not({"CUDA_VISIBLE_DEVICES": ""})
    assert not is_fault
    assert "CUDA_VISIBLE_DEVICES hides every GPU" in text
    assert sight.why_not({}) == ("", False)


def test_a_gpu_that_a_broker_has_is_left_to_it(monkeypatch, capsys):
    def taken(index):
        raise ConfigError("The GPU x is taken by another broker (pid 7). Stop that one.")

    monkeypatch.setattr(command, "why_not", lambda: ("", False))
    monkeypatch.setattr(command, "claim_gpu", taken)
    monkeypatch.setattr(command, "_name_of", lambda device: device)
    assert command.main(["--only", "dense"]) == 1
    _, skipped, last = lines_of(capsys.readouterr().out)
    assert skipped["end"] == "skipped"
    assert "taken by another broker (pid 7). Stop that one." in last["sentence"]


def test_the_sentence_says_what_is_wrong_and_where_to_look():
    found = Found(CASES)
    found.outcomes = [
        GpuOutcome("calls", CaseEnd.PASSED, missed=["copies"]),
        GpuOutcome("graphs", CaseEnd.SKIPPED, "no reason"),
    ]
    assert (found.status, found.sentence()) == (
        0,
        "Nothing is wrong: 1 cases passed (1 skipped, 1 goal for speed missed).",
    )
    found.outcomes += [
        GpuOutcome("dense", CaseEnd.FAILED, "MLP: the loss of step 0 is 1."),
        GpuOutcome("pump", CaseEnd.NOT_RUN, "out of time"),
    ]
    assert (found.status, found.sentence()) == (
        1,
        "1 of 4 cases failed (1 skipped, 1 not run, 1 goal for speed missed): dense. "
        "Look at dense first: MLP: the loss of step 0 is 1.",
    )


def test_an_unusable_gpu_leaves_the_others_unrun(monkeypatch):
    monkeypatch.setattr(
        command.Runner,
        "run",
        lambda self, cases: (GpuOutcome(case.name, CaseEnd.FAILED, "no") for case in cases),
    )
    found = list(command.check(CASES[:3], "cuda-on-host", budget_s=60))
    assert [each.end.value for each in found] == ["failed", "not run", "not run"]
    assert found[1].text == "the GPU cannot be used"


def test_an_interpreter_without_jgpu_installed_gets_it_from_the_tree(monkeypatch, tmp_path):
    monkeypatch.setattr(carried, "_is_installed", lambda: False)
    environ = carried.carried_environment({"PATH": os.environ["PATH"]}, tmp_path)
    code = (
        "from importlib.metadata import entry_points as all, version; import jgpu; "
        "print(version('jgpu') == jgpu.__version__, [p.value for p in all(name='jgpu')])"
    )
    # -S: the interpreter as it is without the packages that are installed for it
    told = processes.run(
        [sys.executable, "-S", "-c", code], env=environ, capture_output=True, text=True, check=True
    )
    assert told.stdout == "True ['jgpu.device.autoload:autoload']\n"


# -- the cases themselves, where there is no GPU -------------------------------------------------


def on_the_host(tmp_path, *options):
    """Outcomes by case, and what came at the end."""
    file = tmp_path / "lines.jsonl"
    done = processes.run(
        [
            *(sys.executable, "-m", "jgpu.gpucheck", "--device", "cuda-on-host"),
            *("--file", str(file), *options),
        ],
        capture_output=True,
        text=True,
        timeout=3000,
    )
    assert file.read_text() == done.stdout, done.stderr
    _, *cases, last = lines_of(done.stdout)
    assert done.returncode == last["status"]
    return {each["case"]: each for each in cases}, last


@pytest.mark.e2e
@pytest.mark.timeout(300)
def test_calls_of_the_device_do_what_they_say(tmp_path):
    found, last = on_the_host(tmp_path, "--only", "calls")
    assert last["status"] == 0, found
    assert found["calls"]["checks"] == 9


@pytest.mark.e2e
@pytest.mark.timeout(300)
def test_bad_indices_are_errors_and_nothing_else_is_touched(tmp_path):
    found, last = on_the_host(tmp_path, "--only", "indices")
    assert last["status"] == 0, found
    assert found["indices"]["checks"] > 70


@pytest.mark.parametrize(
    "timed",
    [pytest.param(False, marks=pytest.mark.slow), pytest.param(True, marks=pytest.mark.long)],
    ids=["untimed", "timed"],
)
@pytest.mark.timeout(3000)
def test_cases_pass_on_the_host_or_say_why_they_cannot_be_run_there(tmp_path, timed):
    names = sorted(case.name for case in CASES if case.alone is timed)
    given = "--budget", "2900", "--patience", "6", "--only", *names
    found, last = on_the_host(tmp_path, *given)
    assert last["status"] == 0, last
    assert sorted(found) == names
    skipped = {name for name, each in found.items() if each["end"] == "skipped"}
    assert skipped == (set() if timed else {"graphs", "memcheck", "mixed", "second-gpu", "strict"})
    assert {each["end"] for each in found.values()} <= {"passed", "skipped"}


def test_the_doctor_tells_each_case_and_then_all_of_them(monkeypatch):
    monkeypatch.setattr(
        command.Runner,
        "run",
        lambda self, cases: (GpuOutcome(case.name, CaseEnd.PASSED) for case in cases),
    )
    told = list(_trying.try_the_gpu("cuda-on-host"))
    assert {state for _, state, _, _ in told} == {"ok"}
    assert told[0][0] == "GPU, discovery"
    assert told[-1][2] == f"Nothing is wrong: {len(told) - 1} cases passed."
