"""Ops made of others that trust a value are looked into where a kernel would end the device."""

import pytest
import torch

from jgpu.broker.executor.programs.checking.ops import resolve
from jgpu.broker.executor.programs.checking.waiting import waits_for_its_stream
from jgpu.broker.executor.programs.precautions.inside import LOOKED_INTO
from jgpu.broker.executor.programs.precautions.language import PRECAUTIONS, Attempt
from jgpu.broker.executor.programs.running.callables import below_autograd

GRAD = torch.arange(6.0).reshape(2, 3)


def call(name, *given, **named):
    found = PRECAUTIONS[name.partition(".")[0]]
    assert found.devices == ("cuda",)
    info = resolve(f"aten::{name}", "cpu")
    with below_autograd():
        return found.rule(Attempt(info, given, named))


def test_a_wrong_index_inside_is_an_index_error_and_a_right_one_is_computed():
    index = torch.tensor([1, 0])
    made = call("index_select_backward.default", GRAD, [4, 3], 0, index)
    assert torch.equal(made, torch.zeros(4, 3).index_add(0, index, GRAD))
    with pytest.raises(IndexError, match="index holds 4, which is not in"):
        call("index_select_backward.default", GRAD, [4, 3], 0, torch.tensor([1, 4]))


def test_a_label_that_is_no_class_is_found_inside_of_a_loss():
    assert call("cross_entropy_loss.default", GRAD, torch.tensor([2, 0])) > 0
    with pytest.raises(IndexError, match="target holds 3"):
        call("cross_entropy_loss.default", GRAD, torch.tensor([2, 3]))


def test_places_along_a_dimension_are_found_inside():
    with pytest.raises(IndexError, match="index holds 7"):
        call("gather_backward.default", GRAD, GRAD, 1, torch.tensor([[0] * 3, [7] * 3]), False)


def test_all_that_is_looked_into_is_made_of_other_ops():
    has = torch._C._dispatch_has_kernel_for_dispatch_key
    for base in LOOKED_INTO:
        packet = getattr(torch.ops.aten, base)
        for overload in packet.overloads():
            name = f"aten::{base}" + ("" if overload == "default" else f".{overload}")
            if "out" not in overload:
                assert any(has(name, f"Composite{kind}Autograd") for kind in _KINDS), name
                assert not has(name, "CPU"), name


_KINDS = ("Implicit", "Explicit")


def test_what_looks_on_the_host_is_known_to_wait():
    for base in LOOKED_INTO:
        assert waits_for_its_stream(f"aten::{base}.default", (), ()), base
