"""A torch that does not fit is refused with a sentence and computes nothing in silence."""

import sys

import processes
import pytest

from jgpu import requirements, untried
from jgpu.device import versions

MISFIT = """
import sys
from jgpu import requirements, untried
from jgpu.device import activate
import torch
requirements.TORCH.clear()
requirements.TORCH.update({"98.0": None, "99.0": None})
activate.activate()
for ask in (torch.cuda.is_available, lambda: torch.ones(1).cuda(), torch.cuda.device_count):
    try:
        ask()
        print("silence")
    except Exception as error:
        print(type(error).__name__, error)
"""


@pytest.mark.parametrize("version", ["2.11.0+cu130", "2.13.0+cpu", "2.15.0+cu132"])
def test_versions_of_the_table_fit(version):
    assert versions.check_version(version) is None


@pytest.mark.parametrize("version", ["2.10.0", "1.13.1"])
def test_a_version_before_all_that_were_tried_is_named_with_what_to_install(version):
    problem = versions.check_version(version)
    assert version in str(problem)
    assert "2.11 and newer" in str(problem)
    assert f"pip install '{requirements.torch_wanted()}'" in str(problem)


def test_a_newer_one_is_warned_of_or_refused_as_its_check_says(monkeypatch):
    said = untried.Fitness(warning="newer")
    monkeypatch.setattr(versions, "fitness_of", lambda version: said)
    with pytest.warns(UserWarning, match="newer"):
        assert versions.check_version("2.16.0") is None
    said = untried.Fitness(problem="does not fit")
    assert str(versions.check_version("2.16.0")) == "does not fit"


def test_this_torch_has_every_part_that_is_needed():
    assert versions.check_parts() is None


def test_a_missing_part_is_named(monkeypatch):
    monkeypatch.setattr(versions, "_PARTS", (("torch._C", "_not_there"),))
    assert "torch._C._not_there" in str(versions.check_parts())


def test_a_torch_that_does_not_fit_answers_every_question_for_cuda_with_the_reason():
    done = processes.run(
        [sys.executable, "-c", MISFIT], capture_output=True, text=True, timeout=60, check=True
    )
    lines = done.stdout.splitlines()
    assert len(lines) == 3
    assert all(line.startswith("VersionMismatch The shared GPU works with torch") for line in lines)
