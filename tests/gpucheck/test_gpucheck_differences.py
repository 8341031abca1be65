"""The first op that differs between a step with and without jgpu is found and named."""

import importlib.util
import struct
import sys

import pytest

from jgpu.gpucheck.cases.identity import differences
from jgpu.gpucheck.stand import RESOURCES, Stand


@pytest.fixture
def first_difference(monkeypatch):
    """The function of the program `differences`, which imports its neighbour."""
    monkeypatch.syspath_prepend(str(RESOURCES))
    spec = importlib.util.spec_from_file_location(
        "gpucheck_differences", RESOURCES / "differences.py"
    )
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module.first_difference
    sys.modules.pop("place", None)


def call(name, *numbers, dtype="float32"):
    return name, [(dtype, (len(numbers),), struct.pack(f"{len(numbers)}f", *numbers))]


CALLS = [call("aten::mm", 1, 2), call("aten::gelu", 3, 4), call("aten::add.Tensor", 5, 6)]


def test_equal_steps_have_no_difference(first_difference):
    assert first_difference(CALLS, list(CALLS)) == ""
    nan = [call("aten::log", float("nan"))]
    assert first_difference(nan, list(nan)) == ""


def test_the_first_of_several_ops_that_differ_is_named(first_difference):
    shared = [CALLS[0], call("aten::gelu", 3, 4.5), call("aten::add.Tensor", 0, 0)]
    assert first_difference(CALLS, shared) == (
        "op 1 of 3, aten::gelu: result 0 (float32, shape (2,)) differs in 1 of 2 elements, "
        "by at most 0.5"
    )


def test_ops_of_one_side_alone_are_named_with_the_difference_behind_them(first_difference):
    shared = [CALLS[0], call("aten::tanh", 3, 4), call("aten::add.Tensor", 5, 7)]
    assert first_difference(CALLS, shared) == (
        "op 2 of 3, aten::add.Tensor: result 0 (float32, shape (2,)) differs in 1 of 2 elements, "
        "by at most 1; before it, at op 1, native PyTorch calls aten::gelu and jgpu calls "
        "aten::tanh"
    )


@pytest.mark.e2e
@pytest.mark.timeout(600)
def test_a_difference_that_is_planted_in_a_step_is_found_and_no_other():
    found = differences(Stand("cuda-on-host"), "attention", "aten::gelu")
    assert len(found) == 3
    for text in found.values():
        assert "aten::gelu: result 0 (float32" in text
    assert set(differences(Stand("cuda-on-host"), "attention").values()) == {""}
