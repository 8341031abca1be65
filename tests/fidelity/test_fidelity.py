"""PyTorch's test databases through the shared device: a slice every day, the whole as `long`."""

import argparse
import json
import os
import sys
from collections import Counter

import processes
import pytest
from results import write_result

from jgpu.bench.fidelity.cases import Case, CaseResult, Mismatch
from jgpu.bench.fidelity.command import add_options, main, patience_s
from jgpu.bench.fidelity.expectations import Expectations
from jgpu.bench.fidelity.workers import compare, list_cases
from jgpu.errors import ConfigError

pytestmark = pytest.mark.e2e


def bench(*arguments, path, timeout_s=1700):
    command = [sys.executable, "-m", "jgpu", "bench", "fidelity", "--expect", "--json", str(path)]
    return processes.run([*command, *arguments], capture_output=True, text=True, timeout=timeout_s)


def options(*arguments):
    parser = argparse.ArgumentParser()
    add_options(parser)
    return parser.parse_args(arguments)


def check(done, path, at_least):
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    cases = json.loads(path.read_text())["cases"]
    assert sum(sum(case["counts"].values()) for case in cases) >= at_least


@pytest.mark.timeout(600)
def test_a_slice_of_the_databases_is_no_worse_than_known(tmp_path):
    path = tmp_path / "found.json"
    check(bench("--every", "149", "--first", "80", "--workers", "1", path=path), path, 300)
    cases = json.loads(path.read_text())["cases"]
    assert {case["case"].split()[0] for case in cases} == {"op", "module", "optim"}


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_larger_slice_is_no_worse_than_known_in_another_order(tmp_path):
    path = tmp_path / "found.json"
    check(bench("--every", "83", "--first", "7", "--seed", "2", path=path), path, 750)


@pytest.mark.long
@pytest.mark.timeout(4 * 3600)
def test_the_databases_are_no_worse_than_known(tmp_path):
    path = tmp_path / "found.json"
    done = bench("--seed", "3", path=path, timeout_s=4 * 3600)
    cases = json.loads(path.read_text())["cases"]
    totals = {
        database: sum((Counter(c["counts"]) for c in cases if c["case"].startswith(database)),
                      Counter())
        for database in ("op", "module", "optim")
    }  # fmt: skip
    write_result("fidelity", {"seed": 3, "runs of each sample": 3, "outcomes": totals})
    check(done, path, 150_000)
    right = totals["op"]["equal"] + totals["op"]["close"]
    assert right / totals["op"].total() >= 0.995
    assert {*totals["module"], *totals["optim"]} <= {"equal", "close"}


WORKER = """
import json, os, sys, time
for line in sys.stdin:
    case = json.loads(line)
    for k in range(case["skip"], 4):
        print(json.dumps({"at": k, "sample": 3 - k}), flush=True)
        if k == 1:
            print("the last words", file=sys.stderr)
            os._exit(3)
        found = {"found": [["forward", "equal", ""]], "geometry": {"asked": 2}}
        print(json.dumps({"sample": 3 - k} | found), flush=True)
    print(json.dumps({"done": 4}), flush=True)
"""


def test_a_process_that_dies_costs_one_sample(tmp_path, monkeypatch):
    worker = tmp_path / "worker.py"
    worker.write_text(WORKER)
    monkeypatch.setattr("jgpu.bench.fidelity.workers._WORKER", worker)
    told = []
    cases = [Case("op", "add", "float32"), Case("op", "mul", "float32")]
    compare(cases, dict(os.environ), told.append, workers=1)
    assert [found.case.entry for found in told] == ["add", "mul"]
    for found in told:
        assert (found.samples, dict(found.counts)) == (4, {"equal": 3, "error": 1})
        assert found.as_json()["geometry"] == {"asked": 6}
        (finding,) = found.findings
        assert (finding.sample, finding.outcome) == (2, "error")  # in the database
        assert finding.text == "the process ended with 3: the last words"


def test_a_process_that_says_nothing_costs_one_sample(tmp_path, monkeypatch):
    worker = tmp_path / "worker.py"
    worker.write_text(WORKER.replace("os._exit(3)", "time.sleep(600)"))
    monkeypatch.setattr("jgpu.bench.fidelity.workers._WORKER", worker)
    told = []
    case = Case("op", "add", "float32")
    compare([case], dict(os.environ), told.append, workers=1, patience_s=0.5)
    (found,) = told
    assert (found.samples, dict(found.counts)) == (4, {"equal": 3, "hung": 1})
    assert found.findings[0] == Mismatch("sample", 2, "hung", "no word for 0.5 s")


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([], 60),
        (["--device", "cuda-on-host"], 600),
        (["--device", "cuda-on-host", "--patience", "5"], 5),
    ],
)
def test_a_sample_may_take_as_long_as_its_device_needs(arguments, expected):
    assert patience_s(options(*arguments)) == expected


@pytest.mark.parametrize("patience", ["0", "-1", "nan"])
def test_no_patience_is_refused(patience):
    with pytest.raises(ConfigError, match="--patience is a number of seconds above 0"):
        main(options("--patience", patience))


def test_a_worker_that_cannot_start_ends_the_case(tmp_path, monkeypatch):
    worker = tmp_path / "worker.py"
    worker.write_text("raise SystemExit('no torch here')")
    monkeypatch.setattr("jgpu.bench.fidelity.workers._WORKER", worker)
    told = []
    compare([Case("op", "add", "float32")], dict(os.environ), told.append, workers=1)
    assert told[0].findings[0].text.endswith("no torch here")
    with pytest.raises(RuntimeError, match="no torch here"):
        list_cases(dict(os.environ))


def test_a_wrong_result_is_worse_than_what_is_known():
    found = CaseResult(Case("op", "sin", "float32"))
    found.add("forward", 0, "wrong", "torch.float32 differs by up to 1")
    assert Expectations.read().worse(found)
