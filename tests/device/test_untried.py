"""A torch that nobody has tried: checked once, by processes that may abort, and used or refused."""

import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import processes
import pytest
import torch

from jgpu import requirements, untried
from jgpu.accelerator.place import SWITCH
from jgpu.selfcheck import steps

NEWER = "99.0.1+cu140"
#: a check that fails beside this torch
BROKEN = """
import os, torch
{breakage}
from jgpu.selfcheck.__main__ import main
raise SystemExit(main())
"""


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """The user's cache directory, empty."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "jgpu"


@pytest.fixture
def check(tmp_path, monkeypatch):
    """`check(code)` is what a self-check does from here on; `check.count()` how often it did."""
    log = tmp_path / "runs"

    def be(code):
        counted = f"open({str(log)!r}, 'a').write('x')\n{code}"
        monkeypatch.setattr(untried, "_CHECK", ("-P", "-c", counted))

    be.count = lambda: len(log.read_text()) if log.exists() else 0
    be("print('step the first', 'done', sep='\\n')")
    return be


# -- which are checked ---------------------------------------------------------------------------


@pytest.mark.parametrize("version", ["2.11.0", "2.13.0+cpu", "2.15.1+cu132"])
def test_what_was_tried_is_not_checked(version, cache, check):
    assert untried.fitness_of(version) == untried.Fitness()
    assert check.count() == 0


@pytest.mark.parametrize("version", ["2.16.0", "3.0.0a0+git", "2.15.0rc2", "2.14.0.dev20260801"])
def test_what_is_newer_and_what_was_no_release_yet_is_checked_and_warned_of(version, cache, check):
    fitness = untried.fitness_of(version)
    assert fitness.problem == ""
    assert fitness.warning.startswith(f"torch {version} was not tried with jgpu ")
    assert f"pip install '{requirements.torch_tried()}'" in fitness.warning
    assert check.count() == 1


def test_what_is_older_is_refused_unchecked(cache, check):
    assert "torch 2.10.2" in untried.fitness_of("2.10.2").problem
    assert check.count() == 0


def test_the_checks_own_processes_check_nothing(cache, check, monkeypatch):
    monkeypatch.setenv(untried.CHECKING, "1")
    assert untried.fitness_of(NEWER) == untried.Fitness()


# -- how often -----------------------------------------------------------------------------------


def test_what_was_found_is_kept_for_the_next_process_and_doctor_looks_anew(cache, check):
    check("print('step the first', 'fault E: no', sep='\\n'); raise SystemExit(1)")
    for _ in range(3):
        assert "they do not fit: the first: E: no" in untried.fitness_of(NEWER).problem
    assert check.count() == 1
    check("print('done')")
    assert untried.fitness_of(NEWER, anew=True).problem == ""
    assert untried.fitness_of(NEWER).problem == ""
    assert check.count() == 2


def test_another_jgpu_is_another_subject(cache, check, monkeypatch):
    untried.fitness_of(NEWER)
    monkeypatch.setattr("jgpu.__version__", "98.0")
    untried.fitness_of(NEWER)
    assert check.count() == 2


def test_those_that_start_together_wait_for_one_check(cache, check):
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(untried.fitness_of, [NEWER] * 4))
    assert len(set(found)) == 1
    assert check.count() == 1


def test_a_torn_file_is_no_answer(cache, check):
    untried.fitness_of(NEWER)
    (place,) = cache.glob("torch-*.json")
    place.write_text(place.read_text()[:5])
    untried.fitness_of(NEWER)
    assert check.count() == 2
    assert json.loads(place.read_text()) == {"fault": ""}


def test_where_nothing_can_be_kept_it_is_checked_each_time(check, tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    for _ in range(2):
        assert untried.fitness_of(NEWER).warning
    assert check.count() == 2


# -- how it ends ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "fault"),
    [
        ("print('step A', flush=True); os.abort()", "A: ended the process by SIGABRT."),
        ("print('step A'); sys.exit('no such thing')", "A: ended with status 1 (no such thing)."),
        ("pass", "ended with status 0."),
    ],
)  # fmt: skip
def test_an_end_that_is_none_is_a_fault_with_its_step(code, fault, cache, check):
    check(f"import os, sys\n{code}")
    assert f"they do not fit: {fault} Install" in untried.fitness_of(NEWER).problem
    untried.fitness_of(NEWER)
    assert check.count() == 1


def test_one_that_the_host_ended_or_that_hangs_is_looked_at_again(cache, check, monkeypatch):
    check("import os, signal; os.kill(os.getpid(), signal.SIGKILL)")
    assert "SIGKILL" in untried.fitness_of(NEWER).problem
    check("print('step waiting', flush=True); import signal; signal.pause()")
    monkeypatch.setattr(untried, "_LONGEST_S", 1.0)
    assert "waiting: was not over after 1 seconds." in untried.fitness_of(NEWER).problem
    assert check.count() == 2
    assert list(cache.glob("torch-*.json")) == []


def test_nothing_of_the_shell_or_the_notebook_reaches_the_check(cache, check, monkeypatch):
    monkeypatch.setenv("JGPU_TICKET", "t")
    monkeypatch.setenv("PYTHONWARNINGS", "error")
    monkeypatch.setenv("TORCH_DEVICE_BACKEND_AUTOLOAD", "1")
    check(
        "import os, jgpu\n"
        "assert 'JGPU_TICKET' not in os.environ and 'PYTHONWARNINGS' not in os.environ\n"
        "assert os.environ['TORCH_DEVICE_BACKEND_AUTOLOAD'] == '0'\n"
        "print('done')"
    )
    assert untried.fitness_of(NEWER).problem == ""


# -- the check itself ----------------------------------------------------------------------------


def test_this_torch_passes_and_each_step_is_told_before_it_begins(cache):
    done = processes.run(
        [sys.executable, *untried._CHECK],
        env=untried._environment(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=100,
    )
    told = [step.__name__.replace("_", " ") for step in steps.STEPS]
    begun = ["starting an executor", "becoming cuda", *told]
    assert done.stdout.splitlines() == [*(f"step {name}" for name in begun), "done"], done.stderr
    assert done.returncode == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("breakage", "fault"),
    [
        ("torch._C._swap_tensor_impl = lambda one, other: None", "training: "),
        ("torch.save = lambda *_: os.abort()", "saving and loading: ended the process by SIGABRT"),
        (
            # backward enters the engine elsewhere, beside the guard in Python
            f"os.environ['{SWITCH}'] = '0'\n"
            "engine = torch.autograd.Variable._execution_engine\n"
            "torch.Tensor.backward = lambda self: engine.run_backward((self,), "
            "(torch.ones_like(self),), False, False, (), "
            "allow_unreachable=True, accumulate_grad=True)",
            "errors inside backward: ",
        ),
        (
            "torch._C._rename_privateuse1_backend = lambda name: None",
            "becoming cuda: VersionMismatch: torch ",
        ),
        (
            "from jgpu.selfcheck import host; host._SETTINGS['device'] = 'none'",
            "starting an executor: ConfigError: ",
        ),
    ],
)
def test_where_jgpu_would_fail_the_check_does(breakage, fault, cache, monkeypatch):
    monkeypatch.setattr(untried, "_CHECK", ("-P", "-c", BROKEN.format(breakage=breakage)))
    assert f"they do not fit: {fault}" in untried.fitness_of(NEWER).problem


def test_a_number_that_differs_is_found():
    with pytest.raises(ValueError, match="result 1 of run 1 differs"):
        steps._same(lambda device: [torch.ones(2), torch.tensor([0.0, device == "cpu"])])


def test_an_executor_whose_torch_does_not_fit_says_so(cache):
    code = (
        "from jgpu import requirements, untried\n"
        "requirements.TORCH.clear(); requirements.TORCH['1.0'] = None\n"
        "untried._CHECK = ('-c', 'print(\"step x\\\\nfault E: no\"); raise SystemExit(1)')\n"
        "import sys; from jgpu.broker.executor.process import main; sys.exit(main(sys.argv[1:]))"
    )
    sys.path.append(str(Path(__file__).parents[1] / "broker/executor"))
    from client import Executor

    with Executor("cpu", program=("-c", code)) as executor:
        assert "they do not fit: x: E: no" in executor.ready.text
        assert executor.process.wait(30) == 1
