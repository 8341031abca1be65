"""Composites as on CUDA, on host tensors: inside alone, and of the right numbers."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from jgpu.broker.executor.devices.onhost.branches import AsOnCuda
from jgpu.broker.executor.devices.onhost.generator import PhiloxGenerator


def judge():
    return AsOnCuda(PhiloxGenerator().manual_seed(3))


def names(tensor):
    """The nodes of a graph that are met first."""
    node, found = tensor.grad_fn, []
    while node is not None:
        found.append(node.name())
        node = next((each for each, _ in node.next_functions if each is not None), None)
    return found


x = torch.randn(4, 2, 6, 8, requires_grad=True)
COMPOSITES = {
    "NativeDropout": lambda: F.dropout(x, 0.5),
    "ScaledDotProductEfficientAttention": lambda: F.scaled_dot_product_attention(x, x, x),
    "CudnnBatchNorm": lambda: nn.BatchNorm2d(2)(x),
    "CudnnRnn": lambda: nn.GRU(8, 5)(x[0])[0],
    "ThnnFusedLstmCell": lambda: nn.LSTMCell(8, 5)(x[0, 0])[0],
    "ThnnFusedGruCell": lambda: nn.GRUCell(8, 5)(x[0, 0]),
    "CudnnGridSampler": lambda: F.grid_sample(
        x, x[:, 0, :, :4].unflatten(2, (2, 2)), align_corners=True
    ),
    "_RmsNorm": lambda: F.rms_norm(x, (8,)),
}


@pytest.mark.parametrize("name", COMPOSITES)
def test_a_composite_goes_cudas_way_inside_and_no_other_outside(name):
    torch.manual_seed(0)
    with judge() as inside, inside.drawing():
        there = COMPOSITES[name]()
        there.sum().backward()
    found = names(there)
    assert any(each.startswith(name) for each in found), found
    assert not any(each.startswith(name) for each in names(COMPOSITES[name]()))


@pytest.mark.parametrize("name", [name for name in COMPOSITES if name != "NativeDropout"])
def test_the_numbers_are_the_hosts_but_for_the_last_bits(name):
    made = []
    for context in (judge(), torch.enable_grad()):
        torch.manual_seed(0)
        x.grad = None
        with context:
            found = COMPOSITES[name]()
            found.square().sum().backward()
        made += [(found.detach(), x.grad)]
    torch.testing.assert_close(made[0], made[1], rtol=1e-4, atol=1e-5)


def test_what_an_op_conjugates_for_itself_is_conjugated_inside():
    torch.manual_seed(0)
    tall = torch.randn(5, 3, dtype=torch.complex64)
    calls = (torch.linalg.pinv, lambda t: torch.linalg.lstsq(t, t[:, :1] + 1).residuals)
    for call in calls:
        with judge() as inside, inside.all_of_it():
            there = call(tall)
        torch.testing.assert_close(there, call(tall))


def test_random_numbers_are_the_devices_where_it_is_said_and_the_hosts_elsewhere():
    torch.manual_seed(5)
    right = torch.rand(4)
    torch.manual_seed(5)
    with judge() as inside:
        assert torch.equal(torch.rand(4), right)
        with inside.drawing():
            first = torch.rand(4)
        own = torch.rand(4, generator=PhiloxGenerator().manual_seed(3))
    assert torch.equal(first, own)
    assert not torch.equal(first, right)


def test_in_inference_mode_a_composite_comes_whole_and_goes_the_same_way():
    with judge(), torch.inference_mode():
        found = F.scaled_dot_product_attention(x, x, x, is_causal=True)
    with judge():
        assert torch.equal(found, F.scaled_dot_product_attention(x, x, x, is_causal=True))
